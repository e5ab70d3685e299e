"""Penstock runs one of the cases over topics, on Spark; prints one line of JSON.

With `--out` the result is written as JSON lines.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))

from penstock_nexmark import measure, write_topic, write_view  # noqa: E402
from streams.cases import CASES  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bootstrap", required=True, help="the broker, HOST:PORT")
    parser.add_argument("--case", choices=list(CASES), required=True)
    parser.add_argument("--rows", type=int, required=True, help="in the topics that it reads")
    parser.add_argument("--topic", default="result", help="for the rows of a stream")
    parser.add_argument("--out", type=Path, help="write the result to this file")
    parser.add_argument("--per-batch", type=int, help="events of a partition (default: Penstock's)")
    parser.add_argument("--parallelism", type=int, default=2)
    options = parser.parse_args()
    case = CASES[options.case]
    limit = {} if options.per_batch is None else {"batch_rows": options.per_batch}
    with tempfile.TemporaryDirectory(prefix="penstock-streams-") as work:
        app = case.app(
            f"{work}/streams.penstock",
            options.topic,
            log=f"kafka://{options.bootstrap}",
            cores=options.parallelism,
            **limit,
        )
        found = measure(app, options.rows, options.parallelism)
        if options.out and case.view:
            write_view(app.directory, options.out)
        elif options.out:
            write_topic(options.bootstrap, options.topic, options.out, newest=case.upserts)
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
