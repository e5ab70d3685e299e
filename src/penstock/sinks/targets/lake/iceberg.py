"""An Iceberg table: rows, deletions and offsets are one commit of its catalog.

    invariant: each commit of ours stands on the newest snapshot that it has seen, and taking over makes one

So a process that was taken over from can't commit, whatever it still has at hand. A rebuild writes the branch
`NEW_BRANCH` of the table; one commit makes its snapshot the table's, and the one before the branch
`OLD_BRANCH`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import warnings
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.databases import described
from penstock.core.lazy import installed
from penstock.errors import UserError
from penstock.sinks.targets.contract import (
    BaseTarget,
    Batch,
    Rows,
    Unchanged,
    check_columns,
    fenced,
    nothing_before,
    nothing_built,
    replaced,
)
from penstock.sinks.targets.kind import Facts, Rebuilt, TargetKind
from penstock.sinks.targets.lake.filling import filled, lacking_keys
from penstock.sinks.targets.lake.folders import LOCK_MODE
from penstock.sinks.targets.texts import plain_columns

__all__ = ["KINDS", "IcebergTarget", "iceberg"]

PROPERTIES: Final = {
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest-merge.enabled": "true",
}
MAIN: Final = "main"
NEW_BRANCH: Final = "penstock_new"
OLD_BRANCH: Final = "penstock_old"
LOCK_FILE: Final = ".penstock.lock"
"""In a directory with a catalog: locked by who creates the catalog, a namespace or a table."""
RETRIES: Final = "commit.retry.num-retries"
TRIES: Final = 3
"""Of a commit, where others, such as a rebuild to its branch, commit as well."""
PACE_S: Final = 5.0
"""The least time between commits while the sink follows: each one makes files."""


def iceberg(
    catalog: str | Path | Mapping[str, str], *, table: str, pace_s: float = PACE_S
) -> IcebergTarget:
    """An Iceberg table, created if it doesn't exist.

    Args:
        catalog: a directory, which gets a catalog in SQLite (`catalog.db`) and the tables; or properties of
            one, as for `pyiceberg.catalog.load_catalog`: `{"type": "rest", "uri": …}`.
        table: its name, with a namespace: `shop.users`.
        pace_s: the least time between commits, in seconds; the last ones of a run don't wait.
    """
    return IcebergTarget(catalog, table, pace_s)


class IcebergTarget(BaseTarget):
    """See `iceberg`."""

    unchanged: Unchanged = "kept"

    def __init__(
        self,
        catalog: str | Path | Mapping[str, str],
        table: str,
        pace_s: float,
        branch: str = MAIN,
    ) -> None:
        catalogs: Any = installed("pyiceberg.catalog", "iceberg", "to write Iceberg tables")
        if "." not in table.strip("."):
            raise UserError(
                f"expected a table with its namespace, such as 'shop.users'; found {table!r}"
            )
        if isinstance(catalog, str | Path):
            folder = Path(catalog).absolute()
            self._folder: Path | None = folder
            self._properties: Mapping[str, str] = {
                "type": "sql",
                "uri": f"sqlite:///{folder / 'catalog.db'}",
                "warehouse": folder.as_uri(),
            }
        else:
            self._folder, self._properties = None, catalog
        self.table, self.pace_s, self._branch = table, pace_s, branch
        self._given = catalog
        self.name = f"iceberg {self._folder or described(self._properties.get('uri', ''))} {table}"
        self._load = catalogs.load_catalog
        errors: Any = import_module("pyiceberg.exceptions")
        self._conflict = errors.CommitFailedException
        self._passing: tuple[type[BaseException], ...] = (
            OSError,
            errors.CommitFailedException,
            errors.RESTError,
            errors.ValidationException,
            errors.WaitingForLockException,
        )
        with contextlib.suppress(ImportError):  # needed by catalogs in databases
            import sqlalchemy.exc

            self._passing += (
                sqlalchemy.exc.OperationalError,
                sqlalchemy.exc.InterfaceError,
                sqlalchemy.exc.IntegrityError,  # another one creates the same namespace
            )
        self._catalog: Any = None
        self._table: Any = None
        self._lock: int | None = None
        self._owned: tuple[str, int] | None = None  # the property, and the epoch that this one had

    @property
    def passing(self) -> tuple[type[BaseException], ...]:
        """Of catalogs and files; others that commit at the same time."""
        return self._passing

    def open(self, sink: str, rows: Rows) -> dict[int, int]:
        """Takes over, creates the table where it isn't there; the next offsets."""
        self.close()
        self._sink, self._rows = sink, rows
        none = plain_columns(rows.nothing())
        with self._alone():
            self._connect()
            self._catalog.create_namespace_if_not_exists(self.table.rpartition(".")[0])
            self._table = self._catalog.create_table_if_not_exists(
                self.table, none.schema, properties=PROPERTIES
            )
        if self._branch != MAIN:
            with self._table.update_schema() as change:  # columns that a rebuild adds
                change.union_by_name(none.schema)
        check_columns(self.table, rows, self._table.schema().column_names)
        state = self._state()
        owned, epoch = self._owned or ("", 0)
        is_switched = state.get("switched") == state["epoch"]
        if owned == self._property and state["epoch"] > epoch and not is_switched:
            raise fenced(self.table, sink)
        self._offsets, self._epoch = state["next"], state["epoch"] + 1
        self._commit(none, none)
        self._owned = (self._property, self._epoch)
        return {int(p): int(o) for p, o in self._offsets.items()}

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Lets sinks that share a directory create what isn't there one after another."""
        if self._folder is None:
            yield
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._folder / LOCK_FILE, os.O_CREAT | os.O_RDWR, LOCK_MODE)
        try:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            yield
        finally:
            self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    def _connect(self) -> None:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        self._catalog = self._load("penstock", **self._properties)

    @property
    def _property(self) -> str:
        return _property(self._sink, self._rows)

    def _state(self) -> dict[str, Any]:
        text = self._table.properties.get(self._property)
        found: dict[str, Any] = orjson.loads(text) if text else {"next": {}, "epoch": 0}
        return found

    def write(self, batch: Batch, offsets: Mapping[int, int]) -> None:
        """Makes changes and offsets true together."""
        if self._table is None:
            raise OSError(f"{self.name} is closed")
        self._offsets = {**self._offsets, **{str(p): o for p, o in offsets.items()}}
        if not len(batch):
            return  # offsets alone are written with the next changes: each commit makes files
        for left in reversed(range(TRIES)):
            try:
                self._commit(self._upserts(batch), plain_columns(batch.deletes))
            except self._conflict:
                self._check_owner()
                if not left:
                    raise
            else:
                return

    def _upserts(self, batch: Batch) -> pa.Table:
        """The batch's rows, with the table's values where they lack some."""
        upserts = plain_columns(batch.upserts)
        if not batch.kept:
            return upserts
        keys = lacking_keys(batch, upserts, self._rows.key)
        ref = self._table.metadata.refs.get(self._branch)
        old = upserts.slice(0, 0)
        if ref is not None:
            old = self._table.scan(
                row_filter=matching(keys),
                selected_fields=(*self._rows.key, *batch.kept),
                snapshot_id=ref.snapshot_id,
            ).to_arrow()
        return filled(batch, upserts, self._rows.key, old)

    def _check_owner(self) -> None:
        """Reads the table again, on which the next commit stands, unless it is another one's.

        Raises:
            FencedError: another process has taken over.
            ConnectionError: a rebuild has put another snapshot in place.
        """
        self._table.refresh()
        state = self._state()
        if state.get("switched") == state["epoch"]:
            raise replaced(self.table) from None
        if state["epoch"] != self._epoch:
            raise fenced(self.table, self._sink) from None

    def _commit(self, upserts: pa.Table, deletes: pa.Table) -> None:
        keys = list(self._rows.key)
        # A retry would stand on what another process has committed meanwhile.
        self._table.metadata.properties[RETRIES] = "0"
        state = orjson.dumps({"next": self._offsets, "epoch": self._epoch}).decode()
        transaction = self._table.transaction()
        with self._conflicts(), transaction:
            changed = [t.select(keys) for t in (upserts, deletes) if keys and len(t)]
            if changed and self._branch in self._table.metadata.refs:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of keys that aren't there
                    transaction.delete(matching(pa.concat_tables(changed)), branch=self._branch)
            transaction.append(upserts, branch=self._branch)
            transaction.set_properties({self._property: state})

    @contextlib.contextmanager
    def _conflicts(self) -> Iterator[None]:
        """A commit to another branch, such as a rebuild's, is a conflict that passes, too."""
        try:
            yield
        except ValueError as error:  # it stands on an older number of the table's commits
            if "sequence number" not in str(error):
                raise
            raise self._conflict(str(error)) from error

    def close(self) -> None:
        """Lets the catalog go."""
        self._unlock()
        if self._catalog is not None:
            self._catalog.close()
        self._catalog = self._table = None

    # -- tables that are rebuilt ---------------------------------------------------------------------

    @contextlib.contextmanager
    def _loaded(self) -> Iterator[Any]:
        """The table; None: there is none."""
        self._connect()
        try:
            there = self._catalog.table_exists(self.table)
            yield self._catalog.load_table(self.table) if there else None
        finally:
            self.close()

    def beside(self, sink: str, rows: Rows) -> IcebergTarget:
        """A branch of the table."""
        own = _property(f"{sink}.rebuild", rows)
        with self._loaded() as table:
            if (
                table is not None
                and own in table.properties
                and NEW_BRANCH not in table.metadata.refs
            ):
                table.transaction().remove_properties(own).commit_transaction()
        return IcebergTarget(self._given, self.table, self.pace_s, NEW_BRANCH)

    def switch(self, sink: str, rows: Rows) -> None:
        """Makes the branch's snapshot the table's, with its offsets, in one commit."""
        with self._loaded() as table:
            if table is None or NEW_BRANCH not in table.metadata.refs:
                raise nothing_built(self.table)
            self._exchange(table, rows, sink, f"{sink}.rebuild", NEW_BRANCH)

    def go_back(self, sink: str, rows: Rows) -> None:
        """Exchanges the table's snapshot and the one before the last rebuild, in one commit."""
        with self._loaded() as table:
            if table is None or OLD_BRANCH not in table.metadata.refs:
                raise nothing_before(self.table)
            self._exchange(table, rows, sink, f"{sink}.old", OLD_BRANCH)

    def _exchange(self, table: Any, rows: Rows, sink: str, other: str, branch: str) -> None:
        """The snapshot of a branch becomes the table's, and that the one of `OLD_BRANCH`.

        Raises:
            UserError: another sink has made the branch.
        """
        from pyiceberg.table.update.snapshot import ManageSnapshots

        table.metadata.properties[RETRIES] = "0"
        refs, properties = table.metadata.refs, table.properties
        mine = orjson.loads(properties.get(_property(sink, rows), '{"next": {}, "epoch": 0}'))
        if _property(other, rows) not in properties:
            head, end = "penstock.sink.", f"{other.removeprefix(sink)}.{rows.topic}"
            own = [one for one in properties if one.startswith(head) and one.endswith(end)]
            names = ", ".join(one.removeprefix(head).removesuffix(end) for one in own)
            raise UserError(
                f"expected the branch {branch} of {self.table} from the sink {sink!r}; found one of "
                f"{names or 'another topic'}. Give its name and topic"
            )
        theirs = orjson.loads(properties[_property(other, rows)])
        epoch = max(mine["epoch"], theirs["epoch"]) + 1
        with table.transaction() as transaction:
            change = ManageSnapshots(transaction)
            if MAIN in refs:
                change = change.create_branch(refs[MAIN].snapshot_id, OLD_BRANCH)
            if branch != OLD_BRANCH:
                change = change.remove_branch(branch)
            change.set_current_snapshot(snapshot_id=refs[branch].snapshot_id).commit()
            if other != f"{sink}.old":
                transaction.remove_properties(_property(other, rows))
            transaction.set_properties(
                {
                    _property(f"{sink}.old", rows): orjson.dumps(mine).decode(),
                    _property(sink, rows): orjson.dumps(
                        {"next": theirs["next"], "epoch": epoch, "switched": epoch}
                    ).decode(),
                }
            )


def _property(sink: str, rows: Rows) -> str:
    return f"penstock.sink.{sink}.{rows.topic}"


def matching(keys: pa.Table) -> Any:
    """A condition of Iceberg that rows with one of these keys meet, and no others.

    Rows are compared with each of its terms: `a = 1 AND b IN (…) OR a = 2 AND b IN (…)`. So the column with
    the most values is the one within IN.
    """
    import pyiceberg.expressions

    of: Any = pyiceberg.expressions  # its types don't know names of columns
    *others, most = sorted(keys.column_names, key=lambda n: len(pc.unique(keys.column(n))))
    if not others:
        return of.In(most, keys.column(most).to_pylist())
    terms = [of.AlwaysFalse(), of.AlwaysFalse()]
    for one in keys.group_by(others).aggregate([(most, "list")]).to_pylist():
        parts = [of.EqualTo(name, one[name]) for name in others]
        terms.append(of.And(of.In(most, one[f"{most}_list"]), *parts))
    return of.Or(*terms)


KINDS: Final = (
    TargetKind(
        name="iceberg",
        title="Iceberg",
        make=iceberg,
        arguments='directory, table="shop.users"',
        examples=("DIRECTORY.iceberg",),
        suffixes=(".iceberg",),
        table="the table, with its namespace: shop.users",
        extra="iceberg",
        facts=Facts(
            guarantee="yes",
            exactly_once="rows, deletions and offsets are one commit of the catalog",
            older_process="a new owner creates a snapshot; commits that are based on an earlier one fail",
            loading="Parquet files",
            others="can read and write",
            left_out="is read from the target, and written again",
            rebuilt=Rebuilt(
                new="the branch `penstock_new` of the table",
                replaced="one commit makes it the table's current snapshot. New columns are added to the "
                "table before that",
                old="the branch `penstock_old`",
            ),
        ),
    ),
)
