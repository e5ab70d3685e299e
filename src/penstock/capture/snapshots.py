"""What snapshots of all kinds of databases share.

The snapshot of tables that are new. Debezium's markers of rows: which are the first and the last, of all and
of a table. Requests for snapshots while changes flow, and how far these are.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, TypeVar

from penstock.capture.database import Database, Snapshot, TableName, spelled
from penstock.capture.envelope import Records
from penstock.capture.notifications import INCREMENTAL, INITIAL
from penstock.capture.output import Output
from penstock.capture.progress import State, Watched
from penstock.capture.table_schemas import Version

__all__ = [
    "DETAIL",
    "Initial",
    "Progress",
    "Requests",
    "StoppedError",
    "marked",
    "written_before",
]

DETAIL: Final = "snapshot"
"""Where the progress is in `State.details`."""
_NOTIFIED: Final = {
    "start": "STARTED",
    "pause": "PAUSED",
    "resume": "RESUMED",
    "stop": "ABORTED",
}
T = TypeVar("T")
R = TypeVar("R")


class StoppedError(Exception):
    """It is stopped within a snapshot, which the next run begins again."""


class Initial:
    """The snapshot of tables that are new, in one transaction of the log with the position behind it.

    Args:
        database: whose tables they are.
        output: where to.
        new: the tables, with their topics.
        end: waits, in seconds; whether the capture is to end.
    """

    def __init__(
        self,
        database: Database,
        output: Output,
        new: dict[TableName, str],
        end: Callable[[float], bool],
    ) -> None:
        self._database, self._output, self._new, self._end = database, output, new, end
        self._counts = dict.fromkeys(new, 0)
        self._names, self._id = [spelled(one) for one in new], uuid.uuid4().hex

    def write(self, numbers: Mapping[str, int], again: Mapping[str, tuple[int, ...]]) -> None:
        """Writes the rows that tables have, and from where their changes count.

        Keys that their topics have of a former snapshot, and the tables don't, are deleted.

        Args:
            numbers: which tables they are.
            again: by table, the ends of topics that have such keys.

        Raises:
            StoppedError: it was stopped; nothing of it becomes visible.
        """
        output = self._output
        output.notify_now(INITIAL, "STARTED", self._id)
        with self._database.snapshot() as snapshot:
            self._write_rows(snapshot)
            for table in self._new:
                now_ms = time.time_ns() // 1_000_000
                output.describe(table, self._database.shape(table), now_ms)
            state = self._state_behind(snapshot, numbers, again)
            chunked = set(state.details.get(DETAIL, {}).get("tables", ()))  # read afterwards
            self._notify_of_ends(chunked)
            output.state = state
            for name in again.keys() - chunked:
                for _ in output.forget_unseen(name):
                    if self._end(0.0):
                        raise StoppedError
            output.commit(output.state)

    def _write_rows(self, snapshot: Snapshot) -> None:
        output = self._output
        reading: TableName | None = None
        with contextlib.closing(snapshot.read(self._new)) as rows:
            for table, record in rows:
                if table != reading:
                    # Not before: it can't be altered now.
                    output.use(self._new[table], self._database.shape(table))
                    reading, more = table, {"current_collection_in_progress": spelled(table)}
                    output.notify_now(INITIAL, "IN_PROGRESS", self._id, self._names, **more)
                is_sent = isinstance(record, Records) or output.is_full
                if isinstance(record, Records):
                    shape = self._database.shape(table)
                    output.put_all(self._new[table], *record[:3], shape, record.lost)
                    count = len(record.keys)
                else:
                    output.add(record)
                    output.send()
                    count = 1
                self._counts[table] += count
                output.done.snapshot_rows += count
                if is_sent and self._end(0.0):
                    output.notify_now(INITIAL, "ABORTED", self._id)
                    raise StoppedError

    def _state_behind(
        self, snapshot: Snapshot, numbers: Mapping[str, int], again: Mapping[str, tuple[int, ...]]
    ) -> State:
        """The state with the snapshot's tables. A capture that has tables keeps its place in the changes."""
        state = self._output.state
        tables = {
            (name := spelled(table)): Watched(
                *(topic, snapshot.position, self._counts[table], numbers[name]),
                unseen=again.get(name, ()),
            )
            for table, topic in self._new.items()
        }
        begins = {} if state.tables else getattr(snapshot, "begins", {})
        return replace(
            state,
            position=state.position if state.tables else snapshot.position,
            time_us=state.time_us or time.time_ns() // 1000,
            details={**state.details, **begins, **getattr(snapshot, "details", {})},
            tables={**state.tables, **tables},
        )

    def _notify_of_ends(self, chunked: set[str]) -> None:
        for table, count in self._counts.items():
            name = spelled(table)
            if name not in chunked:
                status = "SUCCEEDED" if count else "EMPTY"
                more = {"scanned_collection": name, "status": status}
                self._output.notify(
                    *(INITIAL, "TABLE_SCAN_COMPLETED", self._id, self._names),
                    **more,
                    total_rows_scanned=count,
                )
        self._output.notify(INITIAL, "COMPLETED", self._id)


def marked(tables: Iterable[tuple[T, Iterable[R]]]) -> Iterator[tuple[T, R, str]]:
    """Rows with their tables and markers. The first of all is one of the first table.

    >>> [mark for _, _, mark in marked([("a", [1, 2, 3]), ("b", [4])])]
    ['first', 'true', 'last_in_data_collection', 'last']
    """
    held: tuple[T, R] | None = None
    is_first = is_first_of_table = True
    for i, (table, rows) in enumerate(tables):
        is_first &= held is not None or i == 0
        for row in rows:
            if held is not None:
                ends_table = held[0] != table
                yield *held, _marker(is_first, is_first_of_table, ends_table)
                is_first, is_first_of_table = False, ends_table
            held = table, row
    if held is not None:
        yield *held, "last"


def _marker(is_first: bool, is_first_of_table: bool, ends_table: bool) -> str:  # noqa: FBT001
    if is_first:
        return "first"
    if ends_table:
        return "last_in_data_collection"
    return "first_in_data_collection" if is_first_of_table else "true"


@dataclass(frozen=True)
class Progress:
    """How far snapshots are.

    Attributes:
        asked: the newest request that was taken.
        tables: that are to be read; the first is being read.
        where: conditions in SQL, by table.
        cursor: the key up to which the first one was read; empty where nothing was.
        last: its last key when it was begun.
        rows: of it that were read.
        estimate: how many it has, as the database estimates.
        is_paused: whether it waits.
    """

    asked: int = 0
    tables: tuple[str, ...] = ()
    where: Mapping[str, str] = field(default_factory=dict)
    cursor: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    rows: int = 0
    estimate: int = 0
    is_paused: bool = False

    @staticmethod
    def of(details: Mapping[str, Any]) -> Progress:
        """That of a state."""
        stored = dict(details.get(DETAIL, {}))
        for name in ("tables", "cursor", "last"):
            stored[name] = tuple(stored.get(name, ()))
        return Progress(**stored)

    @property
    def details(self) -> dict[str, Any]:
        """For a state."""
        return {DETAIL: asdict(self)}

    def after(self, asked: int, request: Mapping[str, Any]) -> Progress:
        """What it is once a request was taken."""
        match request["what"]:
            case "start":
                added = self.with_tables(request["tables"], request.get("where") or "")
                return replace(added, asked=asked)
            case "pause" | "resume":
                return replace(self, asked=asked, is_paused=request["what"] == "pause")
            case _:
                return Progress(asked=asked)

    def with_tables(self, tables: Iterable[str], where: str = "") -> Progress:
        """What it is with tables to be read from their beginning, also one that is being read.

        Of a table that is to be read already, the rows that were asked for before are read, too.
        """
        added = {one: self._either(one, where) for one in tables}
        rest = self.following if self.tables and self.tables[0] in added else self
        kept = tuple(one for one in rest.tables if one not in added)
        return replace(rest, tables=(*kept, *added), where={**rest.where, **added})

    def _either(self, table: str, where: str) -> str:
        """The condition of the rows that a table is to be read for, by now."""
        if table not in self.tables:
            return where
        before = self.where.get(table) or ""
        return (
            f"({before}) OR ({where})" if before and where and before != where else before and where
        )

    @property
    def following(self) -> Progress:
        """What it is once the first table was read."""
        return replace(self, tables=self.tables[1:], cursor=(), last=(), rows=0, estimate=0)


class Requests:
    """Takes requests for snapshots, and keeps how far they are; a kind of database reads the rows.

    Args:
        output: where to; its state says how far it is.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._requests: list[tuple[int, Mapping[str, Any]]] = []
        self.progress = Progress.of(output.state.details)

    def _abandon(self) -> None:
        """Ends what is read: what wasn't written is read again."""

    def ask(self, number: int, request: Mapping[str, Any]) -> None:
        """Takes a request, once: `start` with `tables` and `where`, `pause`, `resume` or `stop`."""
        newest = max([self.progress.asked, *(asked for asked, _ in self._requests)])
        if number > newest:
            self._requests.append((number, request))

    def _take_requests(self) -> None:
        for number, request in self._requests:
            if request["what"] != "resume":
                self._abandon()  # what wasn't written is read again
            if request.get("delete_missing"):
                self._output.expect_all(request["tables"])
            progress = self.progress.after(number, request)
            self._notify(_NOTIFIED[request["what"]], progress if progress.tables else self.progress)
            self._keep(progress)
        self._requests.clear()

    def read_again(self, tables: Mapping[str, str], details: Mapping[str, Any]) -> None:
        """Lets rows be read that have changed without a record; only between transactions.

        Args:
            tables: for each the condition of these rows; empty: all, and keys that it lacks then are deleted.
            details: for `State.details`, stored at once.
        """
        progress = self.progress
        if tables:
            self._abandon()  # what wasn't written is read again
            self._output.expect_all(name for name, where in tables.items() if not where)
            for name, where in tables.items():
                progress = progress.with_tables([name], where)
            self._notify("STARTED", progress)
        self._keep(progress, details)

    def _skip(self, status: str) -> None:
        """Leaves out the first table."""
        self._abandon()
        self._completed(status, self.progress.rows)
        self._keep(self.progress.following)

    def _notify(self, what: str, progress: Progress, **more: str | int) -> None:
        id_ = str(progress.asked or "initial")
        self._output.notify(INCREMENTAL, what, id_, progress.tables, **more)

    def _completed(self, status: str, rows: int) -> None:
        """A table was read, or can't be."""
        progress = self.progress
        data: dict[str, str | int] = {"scanned_collection": progress.tables[0], "status": status}
        self._notify("TABLE_SCAN_COMPLETED", progress, total_rows_scanned=rows, **data)
        if not progress.following.tables:
            self._notify("COMPLETED", progress.following)

    def _keep(self, progress: Progress, details: Mapping[str, Any] | None = None) -> None:
        self.progress = progress
        state = self._output.state
        kept = {**state.details, **progress.details, **(details or {})}
        self._output.commit(replace(state, details=kept))


def written_before(
    new: Mapping[TableName, str],
    kept: Mapping[str, Watched],
    former: Mapping[str, Watched],
    known: Mapping[str, Version],
) -> dict[str, str]:
    """The tables whose topics have keys of a former snapshot, and no others; with these topics.

    Args:
        new: the tables that are to be read, with their topics.
        kept: those that aren't.
        former: all that were captured, where that is known.
        known: the versions of schemas, also of a capture that was dropped, which say where its records went.
    """
    used = Counter([*new.values(), *(one.topic for one in kept.values())])
    found = {spelled(table): topic for table, topic in new.items() if used[topic] == 1}
    return {
        name: topic
        for name, topic in found.items()
        if topic
        == (former[name].topic if name in former else known[name].topic if name in known else "")
    }
