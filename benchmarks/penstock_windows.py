"""Penstock reads JSON from a topic and counts and sums per user and minute (event time).

Prints one line of JSON, as the peers' programs do. With `--out` the closed windows are written as
Parquet files with the columns `window_start_ms`, `user`, `n`, `total`.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

NOT_READY = 3  # exit code: this side can't be run yet


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bootstrap", required=True, help="the broker, HOST:PORT")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--rows", type=int, required=True, help="events in the topic")
    parser.add_argument("--out", type=Path, help="write the windows to this folder, as Parquet")
    parser.add_argument(
        "--keyed",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="the topic's key is the user (nothing is shuffled)",
    )
    parser.add_argument("--per-batch", type=int, default=800_000, help="events (default 800000)")
    parser.add_argument("--parallelism", type=int, default=2)
    return parser.parse_args()


def run_penstock(
    bootstrap: str,
    topic: str,
    *,
    keyed: bool,
    rows: int,
    work: Path,
    out: Path | None = None,
    per_batch: int = 800_000,
    parallelism: int = 2,
) -> dict[str, object]:
    """Run the pipeline from the topic's beginning until it has taken in `rows` events.

    Args:
        bootstrap: The broker, `host:port`.
        topic: Holds `{"user":…,"v":…,"ts":…}`, see `events.py`.
        keyed: Whether the records' key is the user in decimal.
        rows: Events in the topic.
        work: An empty folder for the pipeline's state.
        out: Where to write the windows after the run (not part of the time), or None.
        per_batch: Events per micro-batch at most.
        parallelism: Tasks at a time.

    Returns:
        `side`, `rows`, `seconds` (from the pipeline's start, the session being up, to the commit of
        the last event), `rows_per_s`, `steady_rows_per_s` (`peers.batches`), `startup_s`,
        `late_dropped`, and `batches`, each a `peers.batches.Batch` whose `split_ms` names `fetch`,
        `decode`, `json`, `operator`, `state`, `commit` and `spark`.
    """
    raise NotImplementedError("the engine can't run this pipeline yet")


def main() -> int:
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="penstock-windows-") as work:
        try:
            found = run_penstock(
                options.bootstrap,
                options.topic,
                keyed=options.keyed,
                rows=options.rows,
                work=Path(work),
                out=options.out,
                per_batch=options.per_batch,
                parallelism=options.parallelism,
            )
        except NotImplementedError as error:
            print(f"error: {error}", file=sys.stderr)
            return NOT_READY
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
