"""Penstock's windows as a live view: per user and minute, count, sum and newest `seq`.

Prints one line of JSON with the address that the view is served at, then runs until its standard
input ends, as Spark's side does (`peers/spark_latency.py`).
"""

import argparse
import sys
import tempfile
from pathlib import Path

NOT_READY = 3  # exit code: this side can't be run yet


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bootstrap", required=True, help="the broker, HOST:PORT")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--parallelism", type=int, default=2)
    return parser.parse_args()


def run(bootstrap: str, topic: str, *, parallelism: int, work: Path) -> None:
    """Keep the view until standard input ends.

    The topic holds `{"user":…,"seq":…,"v":…,"ts":…}` with the user as key. The line to print once
    the pipeline runs is `{"url": …}`; a GET of it answers either `{user: newest seq, …}` or rows,
    `[{"user": …, "seq": …}, …]`, of one committed version. A last line may give `batches` and
    `batch_ms_p50`.
    """
    raise NotImplementedError("the engine can't run this pipeline yet")


def main() -> int:
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="penstock-latency-") as work:
        try:
            run(
                options.bootstrap,
                options.topic,
                parallelism=options.parallelism,
                work=Path(work),
            )
        except NotImplementedError as error:
            print(f"error: {error}", file=sys.stderr)
            return NOT_READY
    return 0


if __name__ == "__main__":
    sys.exit(main())
