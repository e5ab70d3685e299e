"""The pipeline of `test_states`, which works only while it may.

Arguments: directory, log address, the page's port, the file that lets it work; then names of more views.
"""

import sys
import time
from pathlib import Path

import pyarrow as pa

import penstock as ps

SCHEMA = "user STRING NOT NULL, at TIMESTAMP NOT NULL"


def pipeline(directory: str, address: str, gate: str, *more: str) -> ps.App:
    """Clicks per user; each further view counts the same, by a function that waits for the file."""

    def waits(batch: pa.Table) -> pa.Table:
        while batch.num_rows and not Path(gate).exists():
            time.sleep(0.02)
        return batch

    app = ps.App("shop", directory=directory, log=f"kafka://{address}")
    clicks = app.stream("clicks", SCHEMA, partitions=2)
    for view in ("per_user", *more):
        rows = clicks.map_batches(waits, SCHEMA, name=f"waits for {view}")
        app.view(view, rows.group_by("user").agg(n=ps.count()))
    return app


if __name__ == "__main__":
    directory, address, port, *rest = sys.argv[1:]
    pipeline(directory, address, *rest).main(["--port", port])
