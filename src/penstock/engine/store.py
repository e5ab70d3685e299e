"""A pipeline's durable record: owners, plans and versions.

    epochs/E         who owns the pipeline; the highest number does
    plans/N          what batch N reads: written before it runs, once and forever
    versions/N       what is true after batch N: offsets, watermarks, every trace, every sequence
    settled.json     up to which version all is on the disk, where not every version waited for that
    sizes.json       the records of topics when a program first read them, where its plan depends on that
    savepoints/NAME  a version that is kept until it is dropped
    runs/…           the traces' immutable files
    upgrades/NAME/…  the same again, of state that is made for a changed program (`engine.upgrade`)

JSON stands behind its CRC-32C: `0c1d2e3f {"owner":…}`. Each of these files but `settled.json` and
`sizes.json` is created if absent, never overwritten. Invariant: plan N is unique and the batch is a pure
function of plan N and version N-1, so any process that runs it, however often, computes the same version N
and writes the same output.
Fencing by epoch makes an older owner stop; what makes it harmless until then is that it could only
repeat the very same batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import unquote, urlsplit

import orjson

from penstock.engine.record.plan import Plan, Switch, plan_from_json
from penstock.engine.record.values import Json
from penstock.engine.record.version import Version, states_in
from penstock.errors import CorruptError, FencedError
from penstock.state.files import ArrowStateFiles, LocalStateFiles, StateFiles
from penstock.state.garbage import live, vacuum
from penstock.wire.checksum import crc32c

__all__ = ["Store", "open_files", "sealed", "unsealed", "version_of"]

T = TypeVar("T")

NO_SAVEPOINTS: Final = "Create one: penstock savepoint create APP NAME"
VERSIONS_KEPT: Final = 64
"""For readers of an older version while batches continue: some 10 s at full speed. A version may say
otherwise."""
VERSIONS_KEPT_MIN: Final = 8
"""A reader needs some time with a version, and a savepoint until it is pinned."""
VERSIONS_KEPT_MAX: Final = 100_000
"""A vacuum reads all of them, and each keeps its files."""
EPOCHS_KEPT: Final = 64
"""Owners of the last; an older one finds its own epoch gone, which says the same as a newer one."""
PROBES_MAX: Final = 8
"""Versions after a known one that are looked for one by one; listing all costs as much as some ten."""
UPGRADES: Final = "upgrades"
SETTLED: Final = "settled.json"
SIZES: Final = "sizes.json"

SEAL_BYTES: Final = len(b"00000000 ")


@dataclass(frozen=True, slots=True)
class _Settled:
    """The last version that is on the disk, with all that it needs.

    Attributes:
        version: its number.
        run: of the machine on which it was written.
    """

    version: int
    run: str | None


def open_files(uri: str) -> StateFiles:
    """The files under a path or a URI that pyarrow knows."""
    scheme, there, _ = uri.partition("://")
    if not there:
        return LocalStateFiles(Path(uri))
    if scheme == "file":  # a folder that machines mount
        return LocalStateFiles(Path(unquote(urlsplit(uri).path)))
    if scheme == "s3":
        from penstock.state.s3 import S3StateFiles

        return S3StateFiles(uri)
    from pyarrow import fs

    filesystem, path = fs.FileSystem.from_uri(uri)
    return ArrowStateFiles(filesystem, path, atomic_move=filesystem.type_name == "hdfs")


class Store:
    """The record of one pipeline, over any `StateFiles`."""

    def __init__(self, files: StateFiles, folder: str = "") -> None:
        self.files, self.folder = files, folder
        self._synced: set[str] = set()  # of the last version that was settled here
        self._newest = 0  # the last version that was seen

    def claim(self, owner: str, why: str = "runs the same pipeline: stop one of the two") -> int:
        """Takes over the pipeline: the epoch of the new owner, higher than any before.

        Args:
            owner: the process, for messages.
            why: what the error of the previous owner says after "another process".
        """
        epoch = self.newest_epoch()
        while True:
            epoch += 1
            if not self._create(f"epochs/{epoch:020d}.json", {"owner": owner, "why": why}):
                continue
            newest = self.newest_epoch()
            if newest == epoch:
                return epoch
            epoch = newest  # so slow that the number had been taken, and was vacuumed

    def newest_epoch(self) -> int:
        """The epoch of the owner; 0 where there was none."""
        return max(self._numbers("epochs"), default=0)

    def check_owner(self, epoch: int) -> None:
        """Raises `FencedError` where a newer owner has taken over."""
        number = epoch + 1
        # Epochs are taken one after the other; vacuuming leaves the newest ones.
        if not self.files.exists(f"{self.folder}epochs/{number:020d}.json"):
            if self.files.exists(f"{self.folder}epochs/{epoch:020d}.json"):
                return
            number = self.newest_epoch()
        if number != epoch:
            found = self._read(f"epochs/{number:020d}.json") if number else {}
            raise FencedError(
                f"expected to own this pipeline in epoch {epoch}; found epoch {number}, taken by "
                f"{found.get('owner', 'unknown')}. Another process "
                f"{found.get('why', 'runs the same pipeline: stop one of the two')}"
            )

    def newest_version(self) -> int:
        """The number of the last committed version; 0 where there is none."""
        # Versions follow one another: who asks again looks for the next ones, and lists all if many came.
        number = self._newest
        if number and self._has_version(number):
            for following in range(number + 1, number + PROBES_MAX):
                if not self._has_version(following):
                    self._newest = following - 1
                    return self._newest
        self._newest = max(self._numbers("versions"), default=0)
        return self._newest

    def _has_version(self, number: int) -> bool:
        return self.files.exists(f"{self.folder}versions/{number:020d}.json")

    def version(self, number: int) -> Version:
        """A committed version.

        Raises:
            CorruptError: it isn't what was written.
            SetupError: a later release wrote it.
        """
        path = f"versions/{number:020d}.json"
        return version_of(self._read(path), self.folder + path)

    def commit(self, version: Version, *, relaxed: bool = False) -> bool:
        """Makes a version true; False where there is one of its number already.

        Args:
            version: the new one.
            relaxed: not to wait for the disk; `settle` does, later. Needs `can_relax`.
        """
        path, files = f"{self.folder}versions/{version.number:020d}.json", self.files
        content = version.to_json()
        content.pop("run", None)
        if relaxed:
            assert isinstance(files, LocalStateFiles)
            files, content["run"] = files.relaxed(), files.run
        return files.create(path, sealed(content))

    @property
    def can_relax(self) -> bool:
        """Whether versions may be committed before they are on the disk."""
        return isinstance(self.files, LocalStateFiles) and self.files.run is not None

    def sync(self, version: Version) -> None:
        """Waits until the state of a version is on the disk."""
        if isinstance(self.files, LocalStateFiles):
            self.files.sync(sorted(live(version.states())))

    def settle(self, version: Version) -> None:
        """Waits until a version, and all that it needs, is on the disk, and notes that."""
        assert isinstance(self.files, LocalStateFiles)
        number, run, files = version.number, self.files.run, self.files
        known = self._noted_settled()
        if known is not None and known.run == run and known.version > number:
            return  # a newer owner's
        paths = live(version.states())
        files.sync(sorted(paths - self._synced))
        if number:
            files.sync([f"{self.folder}versions/{number:020d}.json"])
        files.write(self.folder + SETTLED, [sealed(asdict(_Settled(number, run)))])
        self._synced = paths

    def recover(self) -> int:
        """Takes back versions of which a machine may have lost something when it stopped; how many.

        Their plans are there, so they are made again, and are the same.
        """
        known = self._noted_settled()
        if known is None or not self.can_relax:
            return 0
        assert isinstance(self.files, LocalStateFiles)
        run, count = self.files.run, 0
        if known.run == run:
            return 0
        for number in reversed(self._numbers("versions")):
            if number <= known.version:
                break
            with contextlib.suppress(CorruptError):
                if self.version(number).run in {None, run}:
                    break
            self.files.delete(f"{self.folder}versions/{number:020d}.json")
            count += 1
        return count

    def _noted_settled(self) -> _Settled | None:
        if not self.files.exists(self.folder + SETTLED):
            return None
        content = self._read(SETTLED)
        return _typed(
            lambda found: _Settled(found["version"], found["run"]), content, self.folder + SETTLED
        )

    def sizes(self) -> Mapping[str, int] | None:
        """The records of topics that `note_sizes` noted."""
        return self._read(SIZES) if self.files.exists(self.folder + SIZES) else None

    def note_sizes(self, records: Mapping[str, int]) -> None:
        """Writes down how many records topics have, instead of what was written down before."""
        self.files.write(self.folder + SIZES, [sealed(dict(records))])

    def plan(self, number: int) -> Plan | Switch | None:
        """The plan of a batch, if it was written."""
        path = f"{self.folder}plans/{number:020d}.json"
        return self._plan(number) if self.files.exists(path) else None

    def write_plan(self, plan: Plan | Switch) -> Plan | Switch:
        """Writes the plan of a batch, unless there is one; which one counts: the same object, if this."""
        path = f"plans/{plan.version:020d}.json"
        return plan if self._create(path, plan.to_json()) else self._plan(plan.version)

    def _plan(self, number: int) -> Plan | Switch:
        path = f"plans/{number:020d}.json"
        return _typed(plan_from_json, self._read(path), self.folder + path)

    def pins(self) -> list[str]:
        """The names of the savepoints."""
        return sorted(
            path.rpartition("/")[2].removesuffix(".json")
            for path in self.files.list(f"{self.folder}savepoints")
        )

    def pin(self, name: str, version: Version, created_us: int) -> bool:
        """Writes a savepoint, with the wall clock's time; False where there is one of that name."""
        content = {"created_us": created_us, "content": version.to_json()}
        return self._create(f"savepoints/{name}.json", content)

    def pinned(self, name: str) -> tuple[Version, int]:
        """What `pin` wrote.

        Raises:
            CorruptError: it isn't what was written.
            FileNotFoundError: there is none of that name.
        """
        path = f"savepoints/{name}.json"
        content = self._read(path)
        created_us = _typed(lambda found: int(found["created_us"]), content, self.folder + path)
        return version_of(content.get("content", {}), self.folder + path), created_us

    def unpin(self, name: str) -> None:
        """Deletes a savepoint."""
        self.files.delete(f"{self.folder}savepoints/{name}.json")

    def note(self, name: str, content: Json) -> Json:
        """Writes something down once and forever; what counts of all that was written under the name."""
        self._create(f"{name}.json", content)
        return self._read(f"{name}.json")

    def noted(self, name: str) -> Json | None:
        """What was written down under a name."""
        path = f"{name}.json"
        return self._read(path) if self.files.exists(self.folder + path) else None

    def within(self, name: str) -> Store:
        """The record of an upgrade of this pipeline, which is made before it is part of it."""
        return Store(self.files, f"{self.folder}{UPGRADES}/{name}/")

    def upgrades(self) -> list[str]:
        """The names of the upgrades of which there are files."""
        prefix = f"{self.folder}{UPGRADES}"
        return sorted({p[len(prefix) + 1 :].split("/")[0] for p in self.files.list(prefix)})

    def vacuum_upgrade(self, name: str, states: Iterable[Json]) -> bool:
        """Deletes what isn't needed of an upgrade that is part of the pipeline, or was given up.

        Args:
            name: of the upgrade.
            states: the operators' states in the versions that are kept, and in savepoints.

        Returns:
            Whether files of it are still needed.
        """
        needed = live(states)
        found = self.files.list(f"{self.folder}{UPGRADES}/{name}", temporary=True)
        for path in found:
            # The epochs stay: a process that still makes the upgrade must find itself replaced.
            if path not in needed and "/epochs/" not in path:
                self.files.delete(path)
        return not needed.isdisjoint(found)

    def vacuum(self, newest: int, states: Iterable[Json]) -> None:
        """Deletes what no kept version needs.

        Args:
            newest: the last committed version.
            states: the operators' states in the versions that `kept(newest)` names, and in savepoints.
        """
        oldest = newest - self.versions_kept(newest) + 1
        # The newest plan stays, and those of versions that are not settled.
        known = self._noted_settled()
        first = newest if known is None else min(newest, known.version + 1)
        doomed = [f"plans/{n:020d}.json" for n in self._numbers("plans") if n < first]
        doomed += [f"versions/{n:020d}.json" for n in self._numbers("versions") if n < oldest]
        doomed += [f"epochs/{n:020d}.json" for n in self._numbers("epochs")[:-EPOCHS_KEPT]]
        for path in doomed:
            self.files.delete(self.folder + path)
        vacuum(self.files, f"{self.folder}runs", states, newest)

    def kept(self, newest: int) -> list[int]:
        """The versions that a vacuum after `newest` keeps."""
        oldest = newest - self.versions_kept(newest) + 1
        return [n for n in self._numbers("versions") if oldest <= n <= newest]

    def versions_kept(self, newest: int) -> int:
        """How many versions a vacuum after `newest` keeps, that one included."""
        with contextlib.suppress(CorruptError, FileNotFoundError):
            return (self.version(newest).versions_kept if newest else None) or VERSIONS_KEPT
        return VERSIONS_KEPT

    def states_kept(self, newest: int) -> list[Json]:
        """The operators' states in the versions that a vacuum after `newest` keeps, and in savepoints."""
        found: list[Json] = []
        for number in self.kept(newest):
            path = f"versions/{number:020d}.json"
            with contextlib.suppress(CorruptError, FileNotFoundError):  # it can't be read
                found += _typed(states_in, self._read(path), self.folder + path)
        for name in self.pins():
            path = f"savepoints/{name}.json"
            with contextlib.suppress(FileNotFoundError):  # it is being dropped
                found += _typed(states_in, self._read(path)["content"], self.folder + path)
        return found

    def _numbers(self, folder: str) -> list[int]:
        names = (path.rsplit("/", 1)[-1] for path in self.files.list(self.folder + folder))
        return sorted(int(n.removesuffix(".json")) for n in names if n.endswith(".json"))

    def _create(self, path: str, content: Json) -> bool:
        return self.files.create(self.folder + path, sealed(content))

    def _read(self, path: str) -> Json:
        return unsealed(bytes(self.files.read(self.folder + path)), self.folder + path)


def version_of(content: Json, path: str) -> Version:
    """The version in a file of the record.

    Raises:
        CorruptError: something is missing, or has another type; the message names the file.
        SetupError: a later release wrote it.
    """
    return _typed(Version.from_json, content, path)


def _typed(read: Callable[[Json], T], content: Json, path: str) -> T:
    try:
        return read(content)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise CorruptError(
            f"expected what Penstock writes in {path}; found other content ({error!r}). The pipeline's state "
            "can be rebuilt from the log: run it with --rebuild"
        ) from error


def unsealed(data: bytes, path: str) -> Json:
    """The object in a file of the record.

    Raises:
        CorruptError: the file isn't what was written; the message names it.
    """
    seal, text = data[:SEAL_BYTES], data[SEAL_BYTES:]
    try:
        if seal != _seal(text):
            raise ValueError("its checksum is not that of its content")
        content = orjson.loads(text)
    except ValueError as error:
        raise CorruptError(
            f"expected a checksum and JSON in {path}; found {data[:40]!r} ({error}). The pipeline's state "
            "can be rebuilt from the log: run it with --rebuild"
        ) from None
    if not isinstance(content, dict):
        raise CorruptError(f"expected a JSON object in {path}; found {type(content).__name__}")
    return content


def sealed(content: Json) -> bytes:
    """What `unsealed` reads."""
    text = orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS)
    return _seal(text) + text


def _seal(text: bytes) -> bytes:
    return b"%08x " % crc32c(text)
