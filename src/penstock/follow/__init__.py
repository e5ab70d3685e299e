"""One follower: what captures, sinks and imports of files share, and what future sources and targets follow.

- `follower`: `Follower` runs a `Body` until it is over: attempts, backoff, phases, reports, pauses.
- `breaker`: the pauses between attempts.
- `control`: requests from outside: one topic for each follower.
- `report`: what a follower says about itself, next to an offset that it commits.
- `listing`: all followers of a log, with their reports.
- `metrics`: figures as Prometheus' families, and the server of `/metrics`.
"""
