"""The demonstrations: this machine's own events, and a web server's access log.

`machine` and `lines` make events of the world outside; `feed` sends them to a log; the pipelines
that turn them into views are the programs in `examples`.
"""
