"""The ingestion that `test_ingest` kills. Arguments: the broker's address, the folder, the topic."""

import sys

import penstock as ps
from penstock.files import ingesting, reading

if __name__ == "__main__":
    ingesting.STEP_BYTES, reading.BLOCK_BYTES = (
        2_000,
        1_000,
    )  # many steps, and many pieces of a file
    address, folder, topic = sys.argv[1:]
    ps.ingest(folder, to=topic, log=address, schema="n BIGINT NOT NULL", settle=0)
