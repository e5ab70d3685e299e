"""State: immutable sorted runs on files, merged at a measured pace."""

from penstock.state.files import ArrowFiles, Files, LocalFiles, MemoryFiles
from penstock.state.layout import Layout, Value
from penstock.state.runs import Writer
from penstock.state.trace import Trace
from penstock.state.vacuum import vacuum

__all__ = [
    "ArrowFiles",
    "Files",
    "Layout",
    "LocalFiles",
    "MemoryFiles",
    "Trace",
    "Value",
    "Writer",
    "vacuum",
]
