"""Changelogs to registered formats: the mirror of `penstock.formats.registered`, which reads them.

    JSON of keys or values  ->  columns  ->  Avro or Protobuf, by the encoders that other topics have

What the columns aren't certain of is left to the caller, who writes it record by record with `one`: that has
the rules in full, and says which values don't fit. The bytes are the same either way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa

from penstock.core import vectors
from penstock.formats.avro.writing import encode_columns as encode_avro
from penstock.formats.avro.writing import headed
from penstock.formats.connect.avro import encoder
from penstock.formats.connect.columns import RecordReader, texts_of
from penstock.formats.connect.json_schema import json_schema_of
from penstock.formats.connect.parts import Avro, Losses
from penstock.formats.connect.protobuf import protobuf_of
from penstock.formats.json_encode import arrow_buffer
from penstock.formats.pieces import Pieces, joined
from penstock.formats.protobuf import schemas
from penstock.formats.protobuf.writing import FIRST_MESSAGE
from penstock.formats.protobuf.writing import encode_columns as encode_protobuf
from penstock.schemas import Kind
from penstock.schemas.protos import ProtoField, ProtoMessage

__all__ = ["ChangelogEncoder"]

_DECIMAL: Final = ProtoMessage(
    schemas.DECIMAL,
    [
        ProtoField("value", 1, "bytes"),
        ProtoField("precision", 2, "int32"),
        ProtoField("scale", 3, "int32"),
    ],
)
"""The message that every compiler has; its precision is unsigned, which is the same bytes."""


class ChangelogEncoder:
    """Writes the keys or the values of a topic by one schema.

    Args:
        kind: of the schema.
        schema: Avro's of a record of Kafka Connect's; each record is defined before it is named.
        members: by record, the names of its fields in JSON, where they are others there.
        losses: takes values that don't fit, of `one`.
        package: such as the topic; of Protobuf's files.
        earlier: gives the subject's versions, the newest first; of Protobuf, too.
        is_mysql: whether times are MySQL's, which may be negative and longer than a day.

    Attributes:
        text: the schema, as the registry is to have it.
        head: what records begin with; see `use`.
    """

    def __init__(
        self,
        kind: Kind,
        schema: Avro,
        members: Mapping[str, Sequence[str]],
        losses: Losses,
        package: str,
        earlier: Callable[[], Sequence[str]],
        *,
        is_mysql: bool = False,
    ) -> None:
        self._kind, self.head = kind, b""
        match kind:
            case Kind.AVRO:
                self.text = json.dumps(schema, separators=(",", ":"))
                self._append = encoder(schema, members, losses)
            case Kind.JSON:
                self.text = json.dumps(json_schema_of(schema, members), separators=(",", ":"))
            case Kind.PROTOBUF:
                made, self._message = protobuf_of(
                    schema, members, package, earlier(), losses, is_mysql=is_mysql
                )
                self.text, self._messages = made.text, (*made.messages, _DECIMAL)
        is_messages = kind is Kind.PROTOBUF
        self._reader: Callable[[], RecordReader] = lambda: RecordReader(
            schema, members, as_messages=is_messages, is_mysql=is_mysql
        )
        self._columns: RecordReader | None = None

    def use(self, id_: int) -> None:
        """The registry has the schema under a number."""
        self.head = headed(id_) + (FIRST_MESSAGE if self._kind is Kind.PROTOBUF else b"")

    def one(self, text: bytes) -> bytes:
        """A record, of its JSON. Values that don't fit are noted."""
        match self._kind:
            case Kind.AVRO:
                out = bytearray(self.head)
                self._append(out, orjson.loads(text))
                return bytes(out)
            case Kind.JSON:
                return self.head + text
            case Kind.PROTOBUF:
                return self.head + self._message(orjson.loads(text))

    def many(self, texts: pa.Array[Any]) -> tuple[pa.Array[Any], np.ndarray]:
        """Records, of their JSON, which is binary.

        Returns: binary, NULL for NULL, and for what is left; bool[n], which records are left to `one`.
        """
        there = np.asarray(texts.is_valid().to_numpy(zero_copy_only=False))
        some = texts.drop_null() if texts.null_count else texts
        if self._kind is Kind.JSON:
            offsets, data = vectors.text(some)
            made = joined([Pieces(offsets.astype(np.int64), data)], len(some), self.head)
            buffers = [None, arrow_buffer(made.ends.astype(np.int32)), arrow_buffer(made.data)]
            good = np.ones(len(some), np.bool_)
            found: pa.Array[Any] = pa.Array.from_buffers(pa.binary(), len(some), buffers)
        else:
            found, good = self._encoded(some)
        if good.all() and not texts.null_count:
            return found, ~good
        left, is_made = np.zeros(len(texts), np.bool_), np.zeros(len(texts), np.bool_)
        left[there], is_made[there] = ~good, good
        places: Any = pa.array(np.cumsum(is_made) - 1, mask=~is_made)
        return found.take(places), left

    def _encoded(self, texts: pa.Array[Any]) -> tuple[pa.Array[Any], np.ndarray]:
        """The certain ones of records, none NULL."""
        reader = self._columns = self._columns or self._reader()
        columns, good = reader.read(texts_of(texts))
        count = int(np.count_nonzero(good))
        if count < len(good):
            mask = pa.array(good)
            columns = [one.filter(mask) for one in columns]
        if self._kind is Kind.AVRO:
            return encode_avro(reader.fields, columns, count, self.head), good
        return encode_protobuf(self._messages, columns, count, self.head), good
