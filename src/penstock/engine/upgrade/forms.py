"""Whether a state that was written has the form in which its operator keeps it now.

An operator's identity says what it computes. How it keeps that may differ from release to release: other
traces, other columns. Such a state can't be continued, and isn't damaged either: it is made of the log again.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.engine.physical import Physical, Placed
from penstock.engine.record.values import Json
from penstock.engine.record.version import Version
from penstock.errors import CorruptError
from penstock.state import StateFiles
from penstock.state.runs import schema_of

__all__ = ["unfit_states"]


def unfit_states(version: Version, physical: Physical, files: StateFiles) -> frozenset[str]:
    """The operators of a program whose state in a version has another form.

    One file of each trace is opened, and none is read: what is damaged shows when it is used.

    Args:
        version: the last one.
        physical: the program.
        files: where the state is.
    """
    known = version.operators
    return frozenset(
        p.id
        for p in physical.placed.values()
        if p.id in known and not _fits(p, known[p.id].traces, files)
    )


def _fits(placed: Placed, states: Mapping[int, Json], files: StateFiles) -> bool:
    seen: set[str] = set()
    for description in states.values():
        try:
            traces = placed.operator.open(files, description).traces
        except (CorruptError, KeyError):
            return False
        for name, trace in traces.items():
            piece = next((piece for run in trace.runs for piece in run.pieces), None)
            if piece is None or name in seen:
                continue
            seen.add(name)
            schema = schema_of(files, piece)
            if schema is not None and schema != trace.layout.schema:
                return False
    return True
