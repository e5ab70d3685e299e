"""Files that appear in a directory, into a topic: each row once, whatever is killed.

ps.ingest("incoming/*.jsonl.gz", to="clicks", log="127.0.0.1:9092", watch=True)
"""

from typing import TYPE_CHECKING

from penstock.core.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.files.ingesting import Ingested, ingest
else:
    __getattr__ = lazy_names(__name__, {"ingesting": ("Ingested", "ingest")})

__all__ = ["Ingested", "ingest"]
