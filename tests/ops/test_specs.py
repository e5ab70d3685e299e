"""Specs of operators are kept in versions: what was written stays readable, and its digest the same."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
import pytest

from penstock.core.schema import Schema
from penstock.errors import CorruptError, FlowError
from penstock.ops import Upserts, operator_from_spec
from penstock.ops.codec import FLAT, RARE, UNSAID, Name, flags, read_fields, written_fields
from penstock.ops.operator import Operator
from penstock.ops.registry import load_operators
from penstock.ops.state import State
from penstock.state import MemoryStateFiles

SPECS = json.loads((Path(__file__).parent / "specs.json").read_text())


@pytest.mark.parametrize("spec", SPECS, ids=[f"{i} {one['kind']}" for i, one in enumerate(SPECS)])
def test_a_spec_is_written_as_it_was_before(spec: dict[str, Any]) -> None:
    """Version 0.1.0 wrote these: a change here makes all pipelines that have the operator start anew."""
    assert operator_from_spec(spec).to_spec() == spec


def test_specs_of_every_operator_are_known() -> None:
    """A new operator gets its specs into the file, too."""
    missing = load_operators().keys() - {one["kind"] for one in SPECS}
    assert not missing, f"expected in specs.json some of what to_spec() gives of {sorted(missing)}"


@dataclass(frozen=True)
class Inner:
    """Fields that stand in another's spec."""

    bounds: Annotated[tuple[int, int] | None, Name("frame")] = None


@dataclass(frozen=True)
class Everything:
    """A field of each annotation."""

    how: Literal["left", "right"]
    schema: pa.Schema
    columns: Schema
    type: pa.DataType
    names: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]
    inner: Annotated[Inner, FLAT]
    many: tuple[Inner, ...]
    limit: int | float | tuple[int, ...] | None
    sides: Annotated[tuple[bool, bool], flags("left", "right")]
    later: Annotated[int, RARE] = 0
    function: Annotated[Any, UNSAID] = None


EVERYTHING = Everything(
    "left",
    pa.schema([pa.field("k", pa.string(), nullable=False)]),
    Schema.parse("n BIGINT"),
    pa.decimal128(9, 2),
    ("a", "b"),
    (("a", "b"),),
    Inner((1, 2)),
    (Inner(), Inner((3, 4))),
    (5, 6),
    (False, True),
)
WRITTEN = {
    "how": "left",
    "schema": "k STRING NOT NULL",
    "columns": "n BIGINT",
    "type": "DECIMAL(9, 2)",
    "names": ["a", "b"],
    "pairs": [["a", "b"]],
    "frame": [1, 2],
    "many": [{"frame": None}, {"frame": [3, 4]}],
    "limit": [5, 6],
    "sides": ["right"],
}


def test_fields_are_written_as_their_annotations_say() -> None:
    assert written_fields(EVERYTHING) == WRITTEN
    assert read_fields(Everything, json.loads(json.dumps(WRITTEN))) == EVERYTHING


def test_a_field_that_is_added_later_changes_no_spec() -> None:
    """Where it has its default, it isn't written; where it isn't written, it has its default."""
    later = read_fields(Everything, {**WRITTEN, "later": 1})
    assert later.later == 1
    assert written_fields(later) == {"later": 1, **WRITTEN}
    assert read_fields(Everything, WRITTEN).later == 0


def test_a_spec_that_lacks_a_field_says_which() -> None:
    [spec] = [one for one in SPECS if one["kind"] == "upserts"][:1]
    with pytest.raises(CorruptError, match="expected 'keys' of Upserts; found kind, schema"):
        operator_from_spec({name: value for name, value in spec.items() if name != "keys"})


def test_an_annotation_without_a_codec_is_refused() -> None:
    @dataclass(frozen=True)
    class Odd:
        what: dict[str, int]

    with pytest.raises(TypeError, match="Add a codec"):
        written_fields(Odd({}))


def test_an_unknown_kind_says_which_there_are() -> None:
    with pytest.raises(CorruptError, match=r"operators aggregate, .*found 'rows'"):
        operator_from_spec({"kind": "rows"})


def test_two_operators_of_one_kind_are_refused() -> None:
    """Else which one a spec means would depend on what was imported first."""
    with pytest.raises(FlowError, match=r"found penstock\.ops\.keyed\.top\.Top and"):

        class Another(Operator):
            kind = "top"


def test_states_of_former_forms_are_read() -> None:
    """Tables of changelogs and aggregates were described otherwise before."""
    operator = Upserts(pa.schema([("k", pa.int64())]), ("k",))
    files, layouts = MemoryStateFiles(), operator.traits.keeps
    described = operator.empty(files).describe()
    assert described["frontiers_us"] == []
    former = operator.open(files, described["traces"])
    assert former.describe() == described
    watermarked = {"traces": described["traces"], "watermark_us": 7}
    assert State.open(layouts, files, watermarked).frontiers_us == (7,)
