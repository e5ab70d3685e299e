"""State: immutable sorted runs on files, merged at a measured pace."""

from penstock.state.files import ArrowStateFiles, LocalStateFiles, MemoryStateFiles, StateFiles
from penstock.state.layout import Layout, Value
from penstock.state.runs import Writer
from penstock.state.trace import Trace
from penstock.state.vacuum import vacuum

__all__ = [
    "ArrowStateFiles",
    "Layout",
    "LocalStateFiles",
    "MemoryStateFiles",
    "StateFiles",
    "Trace",
    "Value",
    "Writer",
    "vacuum",
]
