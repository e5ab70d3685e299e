"""Where a pipeline's state is, and its newest committed version as JSON: read without Arrow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final, TypedDict, TypeVar

from penstock.core.names import hint, known_names
from penstock.engine.record.values import Offsets
from penstock.engine.record.version import Version
from penstock.engine.store import Store, open_files
from penstock.errors import CorruptError, QueryError

__all__ = ["VersionStatus", "newest", "open_store", "state_of", "status_of"]

T = TypeVar("T")
ATTEMPTS_MAX: Final = 5  # a version may be vacuumed while it is being opened


def state_of(where: str | Path) -> str:
    """Where a pipeline's state is: a path or a URI.

    Args:
        where: an app's name, its directory (`NAME.penstock`), or the URI of its state.

    Raises:
        QueryError: there is none.
    """
    text = str(where)
    if "://" in text:
        return text
    for folder in (Path(text), Path(f"{text}.penstock")):
        if (folder / "state").is_dir():
            return str((folder / "state").absolute())
        if (folder / "versions").is_dir():
            return str(folder.absolute())
    expected = "expected an app's name or its directory"
    for folder in (Path(f"{text}.penstock"), Path(text)):
        if folder.is_dir():
            raise QueryError(
                f"{expected}; found no state in {str(folder)!r}. Run the pipeline, or wait for a batch"
            )
    states = Path(text).parent.glob("*.penstock/state")
    there = sorted(one.parent.name.removesuffix(".penstock") for one in states)
    meant = f"{hint(Path(text).name, there)}. Known here: {known_names(there)}" if there else ""
    found = f"neither {text!r} nor {text + '.penstock'!r}{meant}"
    raise QueryError(f"{expected}; found {found}. Run the pipeline first, or name its directory")


def open_store(where: str | Path) -> Store:
    """The record of the pipeline that `state_of` finds.

    Raises:
        QueryError: there is none.
    """
    return Store(open_files(state_of(where)))


def newest(store: Store, where: str, work: Callable[[Version], T]) -> T:
    """Does some work on the last committed version, and again on the next if it isn't kept meanwhile.

    Args:
        store: the pipeline's record.
        where: it is, for messages.
        work: what is done with the version.

    Raises:
        QueryError: nothing has been committed yet.
    """
    for attempt in range(ATTEMPTS_MAX):
        number = store.newest_version()
        if number == 0:
            raise QueryError(
                f"expected views in {where!r}; found no committed version. "
                "Has the pipeline read anything yet?"
            )
        try:
            return work(store.version(number))
        except (FileNotFoundError, CorruptError):
            if attempt == ATTEMPTS_MAX - 1 or store.newest_version() == number:
                raise
    raise AssertionError


class VersionStatus(TypedDict):
    """What is known of a version, as values of JSON; see `penstock.engine.record.version.Version`.

    Attributes:
        name: of the pipeline.
        version: its number.
        epoch: of the owner that committed it.
        wall_us: the batch's clock.
        partitions: by topic.
        offsets: by topic and partition, of the next record.
        newest_us: by topic and partition, the newest time to which it has moved the watermark.
        watermark_us: by topic.
        counts: of `penstock.engine.record.version.Counts`, by their names.
        begins: by view, where the log began when it was made, if not at 0.
        held: by topic, who holds its watermark back: the fields of `penstock.engine.record.marks.Held`.
    """

    name: str
    version: int
    epoch: int
    wall_us: int
    partitions: dict[str, int]
    offsets: dict[str, dict[str, int]]
    newest_us: dict[str, dict[str, int]]
    watermark_us: dict[str, int]
    counts: dict[str, dict[str, int]]
    begins: dict[str, dict[str, dict[str, int]]]
    held: dict[str, dict[str, int | str | None]]


def status_of(version: Version) -> VersionStatus:
    """Offsets, watermarks and counts as plain values; where the log began, of views that it limits."""
    begins = {
        name: _named(version.operators[view.operator].begins)
        for name, view in version.views.items()
    }
    return {
        "name": version.name,
        "version": version.number,
        "epoch": version.epoch,
        "wall_us": version.wall_us,
        "partitions": dict(version.partitions),
        "offsets": offsets_of(version),
        "newest_us": _named(version.newest_us),
        "watermark_us": dict(version.watermark_us),
        "counts": asdict(version.counts),
        "begins": {name: one for name, one in begins.items() if one},
        "held": {topic: asdict(one) for topic, one in version.held.items()},
    }


def offsets_of(version: Version) -> dict[str, dict[str, int]]:
    """How far a version has read, by topic and partition, as `Position` asks for it."""
    return _named(version.offsets)


def _named(offsets: Offsets) -> dict[str, dict[str, int]]:
    """By topic and partition, whose numbers are texts, as in JSON."""
    return {topic: {str(p): one for p, one in of.items()} for topic, of in offsets.items()}
