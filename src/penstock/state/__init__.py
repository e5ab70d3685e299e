"""State: immutable sorted runs on files, merged at a measured pace."""

from typing import TYPE_CHECKING

from penstock.core.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.state.files import ArrowStateFiles, LocalStateFiles, MemoryStateFiles, StateFiles
    from penstock.state.garbage import vacuum
    from penstock.state.layout import Layout, Value
    from penstock.state.runs import Writer
    from penstock.state.trace import Trace
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "files": ("ArrowStateFiles", "LocalStateFiles", "MemoryStateFiles", "StateFiles"),
            "garbage": ("vacuum",),
            "layout": ("Layout", "Value"),
            "runs": ("Writer",),
            "trace": ("Trace",),
        },
    )

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
