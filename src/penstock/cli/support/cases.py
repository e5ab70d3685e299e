"""Tests of programs that are files: given rows, and the rows that views must have then.

    program: shop.sql              # by default the one that the file is named after: shop.test.yaml
    now: 2026-01-01T12:00:00Z      # the wall clock, if it matters
    tests:
      counts clicks per user:
        - given: {clicks: [{user_id: 1, at: "12:00:00"}]}
          delete: {users: [{id: 7}]}           # by key, of tables
          advance: 1 minute                    # the wall clock
          expect: {per_user: [{user_id: 1, n: 1}]}

A test is a list of steps; each may have each of these, and they are done in this order. Expected rows have
all rows of the view, in any order, and the columns that they name. Values are read as the column's type.
Files are YAML or JSON. Batches are cut and repeated as `ps.testing` does it.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa

from penstock.core.names import hint, known_names
from penstock.core.rows import python_rows
from penstock.core.time import instant_text, instant_us
from penstock.errors import PenstockError, UserError

if TYPE_CHECKING:
    import penstock as ps
    from penstock.testing import Run

__all__ = ["Case", "cases_of", "files_of"]

SUFFIXES: Final = (".yaml", ".yml", ".json")
STEP: Final = ("given", "delete", "advance", "expect")
TOP: Final = ("program", "now", "tests")
CLOSE: Final = 1e-9  # how much a DOUBLE may differ, relative to its size


@dataclass(frozen=True)
class Case:
    """One test.

    Attributes:
        file: that it is in.
        name: of the test.
        program: that it tests.
        steps: what is done and expected.
        now: the wall clock; None: far in the future.
    """

    file: Path
    name: str
    program: Path
    steps: Sequence[Mapping[str, Any]]
    now: str | None = None

    def run(self, app: ps.App) -> list[str]:
        """Runs the test on a fresh run of its program: what differs, in lines; nothing where it passes.

        Raises:
            PenstockError: the test names what isn't there.
        """
        import penstock as ps

        run = ps.testing.run(app, now=self.now)
        for step in self.steps:
            for name, rows in _tables(step, "given"):
                for row in rows:
                    run.send(_topic(app, name), **row)
            for name, rows in _tables(step, "delete"):
                for row in rows:
                    _delete(run, app, name, row)
            if "advance" in step:
                run.settle()
                run.advance(str(step["advance"]))
            differs = [
                line
                for name, rows in _tables(step, "expect")
                for line in _compared(run, name, rows)
            ]
            if differs:
                return differs
        return []


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The files of tests that are meant: those themselves, those next to a program, those in a directory.

    Raises:
        UserError: there is none.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            some = sorted(one for s in SUFFIXES for one in path.glob(f"**/*.test{s}"))
        elif path.suffix in SUFFIXES:
            some = [path]
        else:
            some = [path.with_suffix(f".test{s}") for s in SUFFIXES]
            some = [one for one in some if one.is_file()]
        if not some or not all(one.is_file() for one in some):
            raise UserError(
                f"expected a file of tests, such as {path.with_suffix('').name or 'shop'}.test.yaml; found "
                f"none for {str(path)!r}"
            )
        found += [one for one in some if one not in found]
    return found


def cases_of(file: Path) -> list[Case]:
    """The tests in a file.

    Raises:
        UserError: it has another form.
    """
    content = _read(file)
    _check_names(content, TOP, f"in {file}")
    tests = content.get("tests")
    if not isinstance(tests, dict) or not tests:
        raise UserError(f"expected tests: in {file}, a mapping of names to steps; found {tests!r}")
    program = file.parent / str(content["program"]) if "program" in content else _beside(file)
    cases = []
    for name, steps in tests.items():
        listed = steps if isinstance(steps, list) else [steps]
        for step in listed:
            if not isinstance(step, dict):
                raise UserError(f"expected steps of {name!r} in {file} as mappings; found {step!r}")
            _check_names(step, STEP, f"in a step of {name!r} in {file}")
        if not any(step.get("expect") for step in listed):
            raise UserError(f"expected a step of {name!r} in {file} that has expect:; found none")
        now = content.get("now")
        cases.append(Case(file, str(name), program, listed, None if now is None else str(now)))
    return cases


def _beside(file: Path) -> Path:
    stem = file.name.partition(".test.")[0]
    for suffix in (".sql", ".py"):
        if (file.parent / (stem + suffix)).is_file():
            return file.parent / (stem + suffix)
    raise UserError(f"expected program: in {file}, or {stem}.sql next to it; found neither")


def _check_names(found: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for name in found:
        if name not in known:
            raise UserError(
                f"expected {known_names(known)} {where}; found {name!r}{hint(str(name), known)}"
            )


def _read(file: Path) -> dict[str, Any]:
    text = file.read_bytes()
    try:
        content = orjson.loads(text) if file.suffix == ".json" else _yaml(text, file)
    except orjson.JSONDecodeError as error:
        raise UserError(f"expected JSON in {file}; found: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"expected a mapping with tests: in {file}; found {type(content).__name__}")
    return content


def _yaml(text: bytes, file: Path) -> Any:
    """YAML's plain values, but times and dates are text: columns say what they are."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise UserError(
            f"expected PyYAML, which reads {file}; found it missing. Install 'penstock[yaml]', or write "
            "the tests as JSON"
        ) from None

    class Loader(yaml.SafeLoader):  # type: ignore[misc] # it has no types
        """SafeLoader without timestamps and numbers such as 12:00:00."""

    plain = {"tag:yaml.org,2002:bool", "tag:yaml.org,2002:float", "tag:yaml.org,2002:null"}
    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag in plain]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    whole = re.compile(r"[-+]?(0|[1-9][0-9]*)$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:int", whole, list("-+0123456789"))
    try:
        return yaml.load(text, Loader)  # noqa: S506 - it is a safe one
    except yaml.YAMLError as error:
        raise UserError(f"expected YAML in {file}; found: {error}") from None


def _tables(step: Mapping[str, Any], what: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    found = step.get(what) or {}
    if not isinstance(found, dict):
        raise UserError(f"expected {what}: as names with rows; found {found!r}")
    for name, rows in found.items():
        listed = rows or []
        if not isinstance(listed, list) or not all(
            isinstance(row, dict) and all(isinstance(column, str) for column in row)
            for row in listed
        ):
            raise UserError(
                f"expected rows of {name} in {what}: as a list of mappings of columns; found {rows!r}"
            )
        yield str(name), listed


def _topic(app: ps.App, name: str) -> str:
    """The topic of a stream or table that the program calls so."""
    from penstock.flow.graph import Source, ancestors

    if name not in app.named:
        return name
    return next(one.topic for one in ancestors(app.named[name].node) if isinstance(one, Source))


def _delete(run: Run, app: ps.App, name: str, row: Mapping[str, Any]) -> None:
    """Deletes a table's row where the row was sent to: by its key.

    Raises:
        UserError: it isn't a table's, or the key isn't there.
    """
    from penstock.core.partitioner import murmur2_partitions

    topic = _topic(app, name)
    source = next((one for one in app.graph().sources if one.topic == topic), None)
    key = source.changelog.key if source is not None and source.changelog is not None else ()
    if source is None or not key or not set(key) <= row.keys():
        raise UserError(
            f"expected the key of a table's row in delete: of {name} ({', '.join(key) or 'no table'}); "
            f"found {dict(row)!r}"
        )
    parts = {column: row[column] for column in key}
    text = str(parts[key[0]]) if len(key) == 1 else orjson.dumps(parts).decode()
    count = run.log.ensure_topic(topic, source.partitions)
    partition = int(murmur2_partitions(pa.array([text.encode()], pa.binary()), count)[0])
    run.send_raw(topic, None, key=text, partition=partition)


def _compared(run: Run, name: str, expected: list[dict[str, Any]]) -> list[str]:
    """What differs between a view and its expected rows."""
    table = run.view(name).table
    names = list(dict.fromkeys(column for row in expected for column in row))
    for column in names:
        if column not in table.column_names and table.num_columns:
            known = table.column_names
            raise UserError(
                f"expected columns of {name}: {known_names(known)}; found {column!r}{hint(column, known)}"
            )
    names = names or table.column_names
    shown = [one for one in table.column_names if one in names]
    kinds = {one: table.schema.field(one).type for one in shown}
    wanted = [tuple(_expected(row.get(c), kinds.get(c)) for c in shown) for row in expected]
    found = [tuple(_plain(row[c]) for c in shown) for row in python_rows(table.select(shown))]
    rest, missing = list(found), []
    for row in wanted:
        same = next((one for one in rest if _same(one, row)), None)
        if same is None:
            missing.append(row)
        else:
            rest.remove(same)
    if not missing and not rest:
        return []
    return _difference(name, shown or names, missing, rest, len(found))


def _difference(
    name: str, names: Sequence[str], missing: list[Any], rest: list[Any], count: int
) -> list[str]:
    """Expected and found rows as a table, `-` before those that are missing, `+` before others."""
    rows = [("-", row) for row in missing] + [("+", row) for row in rest]
    rows.sort(key=lambda one: ([str(value) for value in one[1]], one[0] == "+"))
    cells = [[_text(value) for value in row] for _, row in rows]
    widths = [max(len(n), *(len(row[i]) for row in cells)) for i, n in enumerate(names)]
    head = "  ".join(n.ljust(w) for n, w in zip(names, widths, strict=True))
    lines = [f"{name}: expected rows (-) and found rows (+) differ; {count} found", f"    {head}"]
    for (sign, _), row in zip(rows, cells, strict=True):
        lines.append(f"  {sign} " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)))
    return [line.rstrip() for line in lines]


def _text(value: Any) -> str:
    return "NULL" if value is None else str(value)


def _plain(value: Any) -> Any:
    """A view's value as it is compared and shown: times as text."""
    match value:
        case dt.datetime():
            at = value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value
            us = (at - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
            return instant_text(us)
        case dt.date() | dt.time():
            return value.isoformat()
        case bytes():
            return value.decode("utf-8", "replace")
        case dict():
            return {str(k): _plain(v) for k, v in value.items()}
        case list() if value and all(isinstance(one, tuple) for one in value):
            return {str(k): _plain(v) for k, v in value}
        case list():
            return [_plain(one) for one in value]
    return value


def _expected(value: Any, kind: pa.DataType | None) -> Any:
    """A value of a test as one of the column's type."""
    if value is None or kind is None:
        return value
    try:
        if pa.types.is_timestamp(kind):
            text = str(value)
            if re.fullmatch(r"\d\d:\d\d(:\d\d(\.\d+)?)?", text):
                text = f"2000-01-01T{text if text.count(':') > 1 else text + ':00'}Z"
            return instant_text(instant_us(text.replace(" ", "T")))
        if pa.types.is_decimal(kind):
            return Decimal(str(value))
        if pa.types.is_floating(kind):
            return float(value)
        if pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_string(kind):
            return str(value)
    except (PenstockError, InvalidOperation, ValueError):
        return value  # the difference shows it
    return value


def _same(found: Any, expected: Any) -> bool:
    if isinstance(found, tuple | list) and isinstance(expected, tuple | list):
        pairs = zip(found, expected, strict=False)
        return len(found) == len(expected) and all(_same(one, other) for one, other in pairs)
    if isinstance(found, float) and isinstance(expected, int | float):
        return math.isclose(found, expected, rel_tol=CLOSE) or (
            math.isnan(found) and math.isnan(expected)
        )
    if isinstance(found, bool) or isinstance(expected, bool):
        return found is expected
    return bool(found == expected)
