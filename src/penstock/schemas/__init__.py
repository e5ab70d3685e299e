"""Schemas of data between programs: Avro, JSON Schema, Protobuf; what may follow what.

Pure: text in, judgements out. `penstock.registry` keeps schemas; `penstock.formats` reads data by them.
"""

from penstock.schemas.breaks import Break, Malformed
from penstock.schemas.levels import Level, breaks_between
from penstock.schemas.parsing import Kind, Parsed, parse

__all__ = ["Break", "Kind", "Level", "Malformed", "Parsed", "breaks_between", "parse"]
