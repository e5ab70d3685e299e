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
from typing import Any

_PUBLIC = {
    "penstock": ("capture", "serve", "sinks", "spark", "testing"),
    "penstock.app": ("App",),
    "penstock.engine.driver": ("Progress",),
    "penstock.errors": ("PenstockError",),
    "penstock.files": ("ingest",),
    "penstock.flow": (
        *("Stream", "Table", "count_window", "hopping", "session", "sliding", "tumbling"),
        *("corrected_time", "event_time", "header", "processing_time"),
        *(
            "aggregate",
            "approx_count_distinct",
            "approx_quantile",
            "theta_sketch_agg",
            "theta_union_agg",
            "bloom_filter_agg",
        ),
        *("arg_max", "arg_min", "avg", "collect", "count", "count_distinct", "first", "last"),
        *("frequencies", "frequent", "max", "min", "quantile", "stddev", "sum", "variance"),
        *("avro", "csv", "pattern", "record_format"),
    ),
    "penstock.history": ("History",),
    "penstock.queue": ("Queue",),
    "penstock.searches.analysis": ("Analyzer",),
}
"""Public names by where they are; `scripts/reference.py` writes `__init__.pyi`, for type checkers."""
_HOMES = {name: home for home, names in _PUBLIC.items() for name in names}

__all__ = [*_HOMES]  # noqa: PLE0604 - they are texts


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("penstock")
    except PackageNotFoundError:  # a checkout that isn't installed
        return "0+unknown"


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    if home == __name__:
        return import_module(f"{home}.{name}")
    if name == "App":
        _give_command_line()
    return getattr(import_module(home), name)


def _give_command_line() -> None:
    """Lets `App.main` be the command line, which stands above it."""
    from penstock.app.command_line import give

    give(lambda app, arguments: import_module("penstock.cli").program(app, arguments))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
