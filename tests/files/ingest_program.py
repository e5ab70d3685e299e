"""The ingestion that `test_ingest` kills. Arguments: the broker's address, the folder, the topic."""

import sys

import penstock as ps
from penstock.files import _ingest, _reading

if __name__ == "__main__":
    _ingest.STEP_BYTES, _reading.BLOCK_BYTES = 2_000, 1_000  # many steps, and many pieces of a file
    address, folder, topic = sys.argv[1:]
    ps.ingest(folder, to=topic, log=address, schema="n BIGINT NOT NULL", settle=0)
