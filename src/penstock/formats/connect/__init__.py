"""Records of Kafka Connect, such as Debezium's envelopes, as Avro, JSON Schema or Protobuf."""

from penstock.formats.connect.changes import ChangelogEncoder
from penstock.formats.connect.parts import Avro

__all__ = ["Avro", "ChangelogEncoder"]
