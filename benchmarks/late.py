"""How many events a second become windows where a flood of them is late, and corrects closed windows?

    python benchmarks/late.py [--rows 5000000] [--smoke] [--json]

Windows of a minute per user, counted and summed. One of ten events comes up to ten minutes after its window
was closed: Penstock keeps windows and corrects what it wrote to a topic (`late="correct"`), Flink's SQL
fires windows again within its allowed lateness. The newest row of each window must be the true one: no
event may be lost. The same topic, keyed by the user, is read by one after the other (`streams/`).
"""

from __future__ import annotations

import argparse
import sys

from streams.comparing import add_arguments, run

ROWS, SMOKE_ROWS = 5_000_000, 40_000


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_arguments(parser, rows=ROWS)
    parser.add_argument("--smoke", action="store_true", help=f"{SMOKE_ROWS:,} rows: does it run?")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    if options.smoke:
        options.rows = SMOKE_ROWS
    return run(("late-corrected",), parser, options)


if __name__ == "__main__":
    sys.exit(main())
