"""A sink's table is rebuilt next to the live one, and takes its place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from penstock.errors import PenstockError, SetupError, UserError
from penstock.sinks.sink import Followed, Sink
from penstock.sinks.targets.contract import Switchable, Target

__all__ = ["go_back", "rebuild"]


def rebuild(sink: Sink) -> Followed:
    """Rebuilds a sink's table from the topic, next to the live one, and then replaces the live one.

    The sink continues to write the live table until `TABLE__new` has everything in the topic. Then the new
    table replaces the live one, together with its offsets. The old table is kept as `TABLE__old` until the
    next rebuild. A running sink continues with the new table. A rebuild that was killed can be run again.

    Args:
        sink: a sink of the same name, with the columns of the new table.

    Raises:
        UserError: the target can't replace a table.
        SetupError: the target is unavailable.
    """
    target = _switchable(sink)
    with _reported(target):
        new = target.beside(sink.name, sink.rows)
    builder = sink.beside(new, f"{sink.name}.rebuild")
    done = builder.run(until=lambda done: done.lag == 0)
    with _reported(target):
        target.switch(sink.name, sink.rows)
    with contextlib.suppress(PenstockError):  # the table is there; `drop` can do this later
        builder.forget()
    return done


def go_back(sink: Sink) -> None:
    """Exchanges the live table and `TABLE__old`, together with their offsets.

    Raises:
        UserError: there is no such table.
        SetupError: the target is away.
    """
    target = _switchable(sink)
    with _reported(target):
        target.go_back(sink.name, sink.rows)


def _switchable(sink: Sink) -> Switchable:
    target = sink.target
    if not isinstance(target, Switchable):
        raise UserError(
            "expected a target in which one table, index or directory can take the place of another; found "
            f"{target.name}: topics and URLs have names that their readers know. Let a sink with another "
            "name=… write another one, and read that"
        )
    return target


@contextlib.contextmanager
def _reported(target: Target) -> Iterator[None]:
    """Transient errors are reported to the one who waits.

    Raises:
        SetupError: the target can't be reached, or another process holds what is needed.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, (OSError, *target.passing)):
            raise
        raise SetupError(
            f"expected to read and write {target.name}; found: {str(error).strip()}. Run this again, it "
            "continues. A file that one process at a time can open is free while its sink is paused"
        ) from None
    finally:
        target.close()
