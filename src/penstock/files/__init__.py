"""Files that appear in a directory, into a topic: each row once, whatever is killed.

ps.ingest("incoming/*.jsonl.gz", to="clicks", log="127.0.0.1:9092", watch=True)
"""

from penstock.files._ingest import Ingested, ingest

__all__ = ["Ingested", "ingest"]
