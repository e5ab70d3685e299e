"""Kafka's tables of messages, from kio (generated from Kafka's own descriptors).

The one place that imports kio. Where hypothesis is installed, kio loads it to register strategies
for its types, which would cost a broker more time at its start than all the rest; so it is kept
from seeing it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

__all__ = [
    "EntityType",
    "api_key_map",
    "load_entity_schema",
    "load_payload_module",
    "schema_name_map",
]


@contextlib.contextmanager
def _without_hypothesis() -> Iterator[None]:
    if "hypothesis" in sys.modules:
        yield
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment] # Python's way to bar an import
    try:
        yield
    finally:
        del sys.modules["hypothesis"]


with _without_hypothesis():
    from kio.index import load_entity_schema, load_payload_module
    from kio.schema.index import api_key_map, schema_name_map
    from kio.static.constants import EntityType
