"""An index of Elasticsearch or OpenSearch: documents have the offset of their record as version.

    invariant: a document's version is 1 + the offset of the newest record of its key that was written

So a record that is written again, or late by a process that another one has replaced, changes nothing.
Offsets and epoch are a document of their own, which is replaced only as the one that was read (`if_seq_no`).

`TABLE` is an alias of the index `TABLE-000001`, whose offsets are a document of its own. A rebuild writes
`TABLE-000002`, and one request gives it the alias, with which the offsets change as well. Before each write
the sink looks whose alias it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import orjson
import pyarrow as pa

from penstock.core.databases import described
from penstock.core.schema import JSON, TIMESTAMP
from penstock.errors import SetupError, UserError
from penstock.sinks.targets.contract import (
    NEW,
    OLD,
    BaseTarget,
    Batch,
    RefusedError,
    Rows,
    Unchanged,
    fenced,
    no_row,
    nothing_before,
    nothing_built,
    replaced,
)
from penstock.sinks.targets.http import AwayError, Web, cut
from penstock.sinks.targets.kind import Address, Facts, Rebuilt, TargetKind
from penstock.sinks.targets.texts import completed, json_members, key_texts

__all__ = ["KINDS", "ElasticTarget", "elasticsearch"]

STATE_INDEX: Final = "penstock-sinks"
DELETED_KEPT: Final = "1h"
"""How long the version of a deleted document is kept: as long as a process may hang and then continue."""
READ_DOCUMENTS_MAX: Final = 500
"""Of one request, as they are large."""
VERSION_CONFLICT: Final = 409
NOT_THE_ROWS: Final = frozenset({401, 403, 404, 429})
"""Statuses of a document that say something of its index or of the server: nothing is wrong with the row."""


def elasticsearch(
    url: str, *, table: str, create: bool = True, headers: Mapping[str, str] | None = None
) -> ElasticTarget:
    """An index of Elasticsearch or OpenSearch.

    Args:
        url: `https://user:password@host:9200`.
        table: the index's name, or an alias's.
        create: whether to create an index with this alias, and with a mapping of the columns, where there is
            none.
        headers: further ones of each request, such as `{"Authorization": "ApiKey …"}`.
    """
    return ElasticTarget(url, table, headers, create=create)


class ElasticTarget(BaseTarget):
    """See `elasticsearch`."""

    unchanged: Unchanged = "kept"

    def __init__(
        self,
        url: str,
        table: str,
        headers: Mapping[str, str] | None,
        *,
        create: bool,
        built: tuple[str, str] | None = None,
    ) -> None:
        if not table or table != table.lower() or table.startswith(("_", "-", "+")):
            raise UserError(f"expected an index's name in small letters; found {table!r}")
        self._url, self._web, self._headers = url, Web(url, headers), headers
        self.table, self._create = table, create
        self._base = self._web.parts.path.rstrip("/")
        self.name = f"{described(url)} {table}"
        self._built = built  # of a rebuild: its index, and the sink that it is for
        self._owned: tuple[str, int] | None = (
            None  # the state's path, and the epoch that this one had
        )
        self._index = ""

    @property
    def passing(self) -> tuple[type[BaseException], ...]:
        """Of connections; overload."""
        return (OSError,)

    def _ask(self, method: str, path: str, content: Any = None) -> tuple[int, Any]:
        body = None if content is None else orjson.dumps(content)
        status, text = self._web.ask(
            method, self._base + path, body, Content_Type="application/json"
        )
        return status, self._parsed(text)

    def _parsed(self, text: bytes) -> Any:
        try:
            return orjson.loads(text or b"{}")
        except orjson.JSONDecodeError:
            raise AwayError(f"expected JSON of {self.name}; found: {cut(text)}") from None

    def open(self, sink: str, rows: Rows) -> dict[int, int]:
        """Takes over, creates the index where it isn't there; the next offsets."""
        self.close()
        self._sink, self._rows = sink, rows
        if self._built is not None:
            self._index, owner = self._built
        else:
            self._index, owner = self._live() or self._create_live(sink, rows), sink
        self._create_states()
        self._state_path = self._place(owner, rows, self._index)
        status, found = self._ask("GET", self._state_path)
        state: dict[str, Any] = found["_source"] if status == 200 else {"epoch": 0, "next": {}}
        self._seen = (found["_seq_no"], found["_primary_term"]) if status == 200 else None
        owned, epoch = self._owned or ("", 0)
        if owned == self._state_path and state["epoch"] > epoch:
            raise fenced(self.table, sink)
        self._state = {**state, "epoch": state["epoch"] + 1}
        if not self._store():
            raise AwayError(f"another process opens the sink {sink!r} as well")
        self._owned = (self._state_path, self._state["epoch"])
        return {int(p): int(o) for p, o in self._state["next"].items()}

    def _create_states(self) -> None:
        if self._ask("GET", f"/{STATE_INDEX}")[0] != 200:
            self._create_index(STATE_INDEX, {"enabled": False})

    def _place(self, sink: str, rows: Rows, index: str) -> str:
        """Where the state of a sink's index is: of one that isn't behind an alias, without its name."""
        document_id = f"{sink}:{rows.topic}" + ("" if index == self.table else f":{index}")
        return f"/{STATE_INDEX}/_doc/{quote(document_id, safe='')}"

    def _behind(self, alias: str) -> str | None:
        """The index with an alias; None: there is none.

        Raises:
            UserError: there are several.
        """
        status, found = self._ask("GET", f"/_alias/{quote(alias, safe='')}")
        if status != 200:
            return None
        if len(found) > 1:
            raise UserError(
                f"expected {alias!r} to be the alias of one index; found {', '.join(sorted(found))}"
            )
        return str(next(iter(found)))

    def _live(self) -> str | None:
        """The index that is read; None: there is none."""
        found = self._behind(self.table)
        if found is None and self._ask("GET", f"/{quote(self.table, safe='')}")[0] == 200:
            return self.table
        return found

    def _create_live(self, sink: str, rows: Rows) -> str:
        if not self._create:
            raise UserError(
                f"expected the index {self.table!r}; found none. Create it, or let create=True"
            )
        return self._create_next(sink, rows, self.table)

    def _create_next(self, sink: str, rows: Rows, alias: str) -> str:
        """Creates an index with the next number, and with this alias."""
        _, found = self._ask("GET", f"/{quote(self.table, safe='')}-*")
        ends = [name.removeprefix(f"{self.table}-") for name in found]
        number = 1 + max((int(end) for end in ends if end.isdigit()), default=0)
        index = f"{self.table}-{number:06}"
        self._create_states()
        # An index of this name that is gone may have left its offsets.
        self._ask("DELETE", self._place(sink, rows, index))
        self._create_index(index, self._mapping(rows), alias)
        return index

    def _create_index(self, name: str, mapping: dict[str, Any], alias: str | None = None) -> None:
        """Creates an index where it isn't there.

        Raises:
            SetupError: the server refuses it.
        """
        definition = {"settings": {"index": {"gc_deletes": DELETED_KEPT}}, "mappings": mapping}
        if alias is not None:
            definition["aliases"] = {alias: {}}
        status, found = self._ask("PUT", f"/{quote(name, safe='')}", definition)
        if status >= 400 and "resource_already_exists" not in str(found):
            raise SetupError(f"expected to create the index {name!r}; found {status}: {found}")

    def _mapping(self, rows: Rows) -> dict[str, Any]:
        return {
            "properties": {
                field.name: {"type": "keyword"}
                if field.name in rows.key and field.type == pa.string()
                else _type_of(field.type)
                for field in rows.schema
            }
        }

    def _store(self) -> bool:
        """Replaces the state; returns whether no other process has done so."""
        seen = self._seen
        condition = (
            "op_type=create" if seen is None else f"if_seq_no={seen[0]}&if_primary_term={seen[1]}"
        )
        status, found = self._ask("PUT", f"{self._state_path}?{condition}", self._state)
        if status == 409:
            return False
        if status >= 400:
            raise SetupError(f"expected to write to {STATE_INDEX}; found {status}: {found}")
        self._seen = (found["_seq_no"], found["_primary_term"])
        return True

    def write(self, batch: Batch, offsets: Mapping[int, int]) -> None:
        """Writes documents, and then the offsets."""
        if len(batch):
            if self._built is None and self._live() != self._index:
                raise replaced(self.table)
            self._bulk(batch)
        if offsets:
            changed = {str(p): o for p, o in offsets.items()}
            self._state = {**self._state, "next": {**self._state["next"], **changed}}
            if not self._store():
                self._refetch()

    def _refetch(self) -> None:
        """After a conflict: an answer may have been lost, or another process has begun.

        Raises:
            FencedError: it has.
        """
        _, found = self._ask("GET", self._state_path)
        if found.get("_source", {}).get("epoch") != self._state["epoch"]:
            raise fenced(self.table, self._sink)
        raise AwayError("the state was written, and the answer was lost")

    def _bulk(self, batch: Batch) -> None:
        ids = self._ids(batch.upserts, batch.upserted_at.tolist(), batch)
        olds = self._olds(ids, batch)
        rows = completed(batch.upserts, batch.kept, olds)
        # A document that isn't there may have been deleted by a later record, whose version is refused here:
        # where it wasn't, deleting it changes nothing.
        is_lost = [lacks and old is None for lacks, old in zip(batch.is_partial, olds, strict=True)]
        lines: list[bytes] = []
        gone = self._ids(batch.deletes, batch.deleted_at.tolist(), batch)
        for key, offset in zip(gone, batch.deleted_at.tolist(), strict=True):
            lines.append(_action("delete", key, offset))
        for key, offset, row, lost in zip(
            ids, batch.upserted_at.tolist(), rows, is_lost, strict=True
        ):
            lines += (
                [_action("delete", key, offset)] if lost else [_action("index", key, offset), row]
            )
        answer = self._sent(lines)
        items = [one for item in answer["items"] for one in item.items()]
        if answer["errors"]:
            self._judge(items)
        for (_, one), lost in zip(items[len(gone) :], is_lost, strict=True):
            if lost and one["status"] != VERSION_CONFLICT:
                raise no_row([*batch.kept])

    def _olds(self, ids: list[str], batch: Batch) -> list[Any]:
        """Of each document that lacks values those that it has.

        Raises:
            AwayError: they can't be read.
        """
        olds: list[Any] = [None] * len(ids)
        rows = np.flatnonzero(batch.is_partial).tolist()
        for start in range(0, len(rows), READ_DOCUMENTS_MAX):
            some = rows[start : start + READ_DOCUMENTS_MAX]
            asked = {"docs": [{"_id": ids[i], "_source": [*batch.kept]} for i in some]}
            status, text = self._web.ask(
                "POST",
                f"{self._base}/{quote(self._index, safe='')}/_mget",
                orjson.dumps(asked),
                Content_Type="application/json",
            )
            if status >= 400:
                raise AwayError(f"the server answered {status}: {cut(text)}")
            for i, found in zip(some, json_members(text)["docs"], strict=True):
                if "error" in found:
                    raise AwayError(f"the server can't read {ids[i]!r} of {self._index}")
                olds[i] = found.get("_source", {}) if found["found"] else None
        return olds

    def _sent(self, lines: list[bytes]) -> Any:
        """The answer to a bulk request.

        Raises:
            RefusedError: the server doesn't take it as a whole.
        """
        status, text = self._web.ask(
            "POST",
            f"{self._base}/{quote(self._index, safe='')}/_bulk",
            b"\n".join(lines) + b"\n",
            Content_Type="application/x-ndjson",
        )
        if status >= 400:
            raise RefusedError(f"the server answered {status}: {cut(text)}")
        return self._parsed(text)

    def _judge(self, items: Any) -> None:
        """What is made of answers that aren't all good.

        Raises:
            AwayError: the server was overloaded for some, or the index is blocked or gone.
            RefusedError: it doesn't take some.
        """
        refused = ""
        for op, one in items:
            status = one["status"]
            if status == VERSION_CONFLICT or (
                status == 404 and op == "delete" and not one.get("error")
            ):
                continue  # it has a newer version; what is deleted isn't there
            if status in NOT_THE_ROWS or status >= 500:
                raise AwayError(f"the server answered {status}: {one.get('error')}")
            if status >= 400:
                refused = refused or f"{status}: {one.get('error')}"
        if refused:
            raise RefusedError(f"the server answered {refused}")

    def _ids(self, rows: pa.RecordBatch, at: list[int], batch: Batch) -> list[str]:
        if not len(rows):
            return []
        if not self._rows.key:
            return [f"{self._rows.topic}-{batch.partition}-{offset}" for offset in at]
        return key_texts(rows, self._rows.key)

    def close(self) -> None:
        """Ends the connection."""
        self._web.close()

    # -- indices that are rebuilt --------------------------------------------------------------------

    def beside(self, sink: str, rows: Rows) -> ElasticTarget:
        """An index with the alias `TABLE__new`."""
        if self._live() == self.table:
            raise UserError(
                f"expected {self.table!r} to be an alias, which another index can get; found an index. Give "
                f"the index another name and this one as its alias (reindex, then _aliases)"
            )
        new = self._behind(self.table + NEW) or self._create_next(sink, rows, self.table + NEW)
        return ElasticTarget(
            self._url, self.table + NEW, self._headers, create=False, built=(new, sink)
        )

    def switch(self, sink: str, rows: Rows) -> None:  # noqa: ARG002 - offsets are the index's
        """Gives the alias to the new index, in one request; the one before the old one is removed."""
        live, new, old = (self._behind(self.table + end) for end in ("", NEW, OLD))
        if new is None:
            raise nothing_built(self.table)
        self._ask("POST", f"/{quote(new, safe='')}/_refresh")
        actions = [] if old is None else [{"remove_index": {"index": old}}]
        actions += [] if live is None else self._moved(live, "", OLD)
        self._change(actions + self._moved(new, NEW, ""))

    def go_back(self, sink: str, rows: Rows) -> None:  # noqa: ARG002
        """Exchanges the aliases of the two indices, in one request."""
        live, old = (self._behind(self.table + end) for end in ("", OLD))
        if live is None or old is None:
            raise nothing_before(self.table)
        self._change(self._moved(live, "", OLD) + self._moved(old, OLD, ""))

    def _moved(self, index: str, end: str, other: str) -> list[dict[str, Any]]:
        return [
            {"remove": {"index": index, "alias": self.table + end}},
            {"add": {"index": index, "alias": self.table + other}},
        ]

    def _change(self, actions: list[dict[str, Any]]) -> None:
        # No alias has two indices in between.
        actions = sorted(actions, key=lambda one: "add" in one)
        status, found = self._ask("POST", "/_aliases", {"actions": actions})
        if status >= 400:
            raise SetupError(
                f"expected to exchange aliases at {self.name}; found {status}: {found}"
            )


def _action(op: str, id_: str, offset: int) -> bytes:
    """A line of a bulk request."""
    version = {"version": offset + 1, "version_type": "external_gte"}
    return orjson.dumps({op: {"_id": id_, **version}})


def _type_of(type_: pa.DataType) -> dict[str, Any]:
    """What a column's type is called in a mapping."""
    if pa.types.is_list(type_):
        return _type_of(type_.value_type)
    if type_ == pa.string():
        return {
            "type": "text",
            "fields": {"keyword": {"type": "keyword", "ignore_above": 256}},
        }
    if type_ == TIMESTAMP or pa.types.is_date(type_):
        return {"type": "date", "format": "strict_date_optional_time_nanos"}
    if pa.types.is_struct(type_):
        return {"properties": {f.name: _type_of(f.type) for f in type_}}
    if pa.types.is_map(type_) or type_ == JSON:  # of any shape: kept, not searched
        return {"type": "object", "enabled": False}
    if pa.types.is_decimal(type_):
        return {"type": "double"}  # for searches and sums; the document keeps the exact text
    plain = {
        pa.bool_(): "boolean",
        pa.int32(): "integer",
        pa.int64(): "long",
        pa.float32(): "float",
        pa.float64(): "double",
        pa.binary(): "binary",
    }
    return {"type": plain.get(type_, "keyword")}


def _of(address: Address) -> ElasticTarget:
    place = Address(address.url.partition("+")[2], address.table)
    return elasticsearch(place.with_password(), table=address.table, headers=address.headers)


KINDS: Final = (
    TargetKind(
        name="elasticsearch",
        title="Elasticsearch, OpenSearch",
        make=elasticsearch,
        arguments="url, table=…",
        examples=("elasticsearch+http://host:9200", "opensearch+https://host:9200"),
        schemes=(
            *("elasticsearch+http", "elasticsearch+https"),
            *("opensearch+http", "opensearch+https"),
        ),
        table="the index, or its alias",
        of=_of,
        facts=Facts(
            guarantee="yes: writing a document again changes nothing",
            exactly_once="a document's version is its record's offset, so writing it again changes nothing",
            older_process="only the newest process writes offsets",
            loading="bulk requests",
            others="can search; should not write these documents",
            left_out="is read from the target, and written again",
            rebuilt=Rebuilt(
                new="`TABLE-000002`, with the alias `TABLE__new`",
                replaced="one request changes the aliases. `TABLE` must be an alias, as it is where the sink "
                "creates it",
                old="the alias `TABLE__old`",
            ),
        ),
    ),
)
