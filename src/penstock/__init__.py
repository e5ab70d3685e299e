"""Stream processing for Python: events in an ordered log, derived data that stays correct and fresh.

    import penstock as ps

    app = ps.App("shop")
    clicks = app.stream("clicks", "url STRING, at TIMESTAMP", time=ps.event_time("at", lateness="30 seconds"))
    app.view("per_minute", clicks.window(ps.tumbling("1 minute")).group_by("url").agg(n=ps.count()))

    if __name__ == "__main__":
        app.main()

Names are imported when they are first used: workers and command lines need only a part of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock import serve, testing
    from penstock.app import App
    from penstock.engine.driver import Progress
    from penstock.errors import PenstockError
    from penstock.flow import (
        Stream,
        Table,
        avg,
        count,
        event_time,
        hopping,
        max,  # noqa: A004 - the field's names, used as ps.max and so on
        min,  # noqa: A004
        sum,  # noqa: A004
        tumbling,
    )
    from penstock.history import History
    from penstock.queue import Queue

__all__ = [
    "App",
    "History",
    "PenstockError",
    "Progress",
    "Queue",
    "Stream",
    "Table",
    "avg",
    "count",
    "event_time",
    "hopping",
    "max",
    "min",
    "serve",
    "sum",
    "testing",
    "tumbling",
]

_HOMES = {
    "App": "penstock.app",
    "History": "penstock.history",
    "Progress": "penstock.engine.driver",
    "PenstockError": "penstock.errors",
    "Queue": "penstock.queue",
}


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("penstock")
    except PackageNotFoundError:  # a checkout that isn't installed
        return "0+unknown"


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in __all__:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    if name in {"serve", "testing"}:
        return import_module(f"penstock.{name}")
    return getattr(import_module(_HOMES.get(name, "penstock.flow")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
