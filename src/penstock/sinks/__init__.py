"""Tables of other systems that follow topics: each row of a topic's newest state, exactly once.

    ps.sinks.Sink(ps.sinks.postgres("postgresql://localhost/reports", table="users"),

docs/sinks.md says how each is exactly-once. The function of a target, such as `postgres`, is found by its
name in `TargetKind.name`, also where another distribution has it. `scripts/reference.py` writes
`__init__.pyi` for type checkers.
"""

from typing import Any

from penstock.core.lazy import lazy_names

NAMES = {  # administration needs none of the targets
    "control": ("drop", "pause", "resume", "status", "wait_for"),
    "metrics": ("serve_metrics", "sink_metrics"),
    "rebuilding": ("go_back", "rebuild"),
    "names": ("SILENT_MS", "letters_topic", "sink_phase"),
    "sink": ("Followed", "Sink"),
    "targets.address": ("TARGETS", "from_address", "is_address"),
    "targets.contract": (
        *("BaseTarget", "Batch", "Choosing", "RefusedError", "Rows", "Sorting", "Switchable"),
        *("Target", "Unchanged"),
    ),
    "targets.kind": ("Address", "Facts", "Option", "Rebuilt", "TargetKind"),
    "targets.vectors": ("Match", "Vectors"),
}
"""Public names next to the targets' functions, by their modules."""
_find = lazy_names(__name__, NAMES)


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted({*_fixed(), *(one.name for one in _find("TARGETS").own())})
    if name.startswith("_") or name in _fixed():
        return _find(name)
    kind = _find("TARGETS").named(name)
    if kind is None:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}{_find('TARGETS').broken()}"
        )
    return kind.make


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})


def _fixed() -> set[str]:
    return {name for names in NAMES.values() for name in names}
