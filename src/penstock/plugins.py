"""Kinds of things that declare themselves: targets, sources, formats, functions.

A declaration is a value with a name. Penstock's own are in `KINDS` of the modules of a package: whoever adds
a module adds a kind. Those of other distributions are entry points, called as the kind.

    invariant: no code of others is imported until a list is asked for, or a name that isn't ours

An entry point that can't be loaded hides nothing: kinds of other names are found, and the message about a
name that is found nowhere says which distribution is broken.
"""

from __future__ import annotations

import pkgutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, Protocol, TypeVar

from penstock.errors import SetupError, UserError

__all__ = ["Broken", "Listed", "Option", "Registry", "loaded", "read_options"]


class _Named(Protocol):
    @property
    def name(self) -> str: ...


K = TypeVar("K", bound=_Named)


@dataclass(frozen=True)
class Option:
    """An argument that is given as text: behind `?` in the address of a target, or in WITH of SQL.

    Attributes:
        name: the argument's, of the function that gets it.
        text: what it is, as in `expire_s=SECONDS`.
        help: for people, without a full stop.
        read: makes its value of the text; ValueError: it can't.
        required: whether there has to be one.
    """

    name: str
    text: str
    help: str
    read: Callable[[str], Any] = str
    required: bool = False

    def __str__(self) -> str:
        return f"{self.name}={self.text}"


def read_options(
    known: Sequence[Option], given: Mapping[str, str], where: str, shown: object
) -> dict[str, Any]:
    """The values of options.

    Args:
        known: those that there are.
        given: texts, by name.
        where: they are, for messages: `behind users.parquet?`.
        shown: what was found there.

    Raises:
        UserError: one is unknown or empty, or a required one is missing.
    """
    names = {one.name: one for one in known}
    wrong = set(given) - set(names) or not all(given.values())
    wrong = wrong or any(one.required and one.name not in given for one in known)
    try:
        if wrong:
            raise ValueError
        return {name: names[name].read(text) for name, text in given.items()}
    except ValueError:
        needed = "&".join(str(one) for one in known if one.required)
        more = "&".join(str(one) for one in known if not one.required)
        what = f"{needed}, and {more} if need be," if needed and more else needed or more
        raise UserError(f"expected {what or 'no options'} {where}; found {shown!r}") from None


@dataclass(frozen=True)
class Listed(Generic[K]):
    """A kind, and where it is from.

    Attributes:
        kind: what was declared.
        distribution: that has it, with its version; `penstock` without one is this.
    """

    kind: K
    distribution: str


@dataclass(frozen=True)
class Broken:
    """An entry point that can't be loaded.

    Attributes:
        name: the kind's.
        distribution: that has it, with its version.
        reason: what was found.
    """

    name: str
    distribution: str
    reason: str

    def __str__(self) -> str:
        return (
            f"the plugin {self.name!r} of the distribution {self.distribution} can't be loaded: "
            f"{self.reason}"
        )


class Registry(Generic[K]):
    """The kinds of one sort.

    Args:
        group: the name of its entry points, such as `penstock.targets`.
        package: the package with our own, whose modules declare them in `KINDS`; None: there are none.
        of: what a declaration is.
        module: the name of the modules that declare them; None: any.
    """

    def __init__(
        self, group: str, package: str | None, of: type[K], module: str | None = None
    ) -> None:
        self.group, self._package, self._of, self._module = group, package, of, module
        self._own: dict[str, K] | None = None
        self._loaded: dict[str, Listed[K] | Broken] = {}
        self._seen: tuple[tuple[str, ...], frozenset[str]] | None = None
        self._lock = threading.RLock()  # programs load kinds in threads of theirs

    def own(self) -> tuple[K, ...]:
        """Our own, by name."""
        with self._lock:
            if self._own is None:
                found = [one for module in self._modules() for one in self._declared(module)]
                self._own = {one.name: one for one in sorted(found, key=lambda one: one.name)}
                assert len(self._own) == len(found), "two kinds have one name"
            return tuple(self._own.values())

    def named(self, name: str) -> K | None:
        """The kind of this name; None: there is none.

        Raises:
            SetupError: another distribution has it, and can't be loaded.
        """
        with self._lock:
            if (found := self._own_named(name)) is not None:
                return found
        points = [point for point in self._points() if point.name == name]
        if not points:
            return None
        if len(points) > 1:
            names = " and ".join(map(_distribution, points))
            raise SetupError(
                f"expected one distribution with {name!r} among its {self.group}; found {names}. Uninstall "
                "one of them"
            )
        one = self._load(points[0])
        if isinstance(one, Broken):
            raise SetupError(f"expected {name!r} of {self.group}; found that {one}")
        return one.kind

    def listed(self) -> tuple[list[Listed[K]], list[Broken]]:
        """All kinds, our own first, and entry points that can't be loaded. The first of a name counts."""
        found = {one.name: Listed(one, "penstock") for one in self.own()}
        broken = []
        for one in map(self._load, self._points()):
            if isinstance(one, Broken):
                broken.append(one)
            else:
                found.setdefault(one.kind.name, one)
        return [*found.values()], broken

    def names(self) -> frozenset[str]:
        """The names of entry points, looked up once for a path of modules; nothing is imported."""
        path = tuple(sys.path)
        if self._seen is None or self._seen[0] != path:
            self._seen = path, frozenset(point.name for point in self._points())
        return self._seen[1]

    def others(self) -> list[K]:
        """Those of other distributions."""
        return [one.kind for one in self.listed()[0] if one.distribution != "penstock"]

    def broken(self) -> str:
        """A sentence about entry points that can't be loaded, for the end of a message; mostly empty."""
        return "".join(f". Note that {one}" for one in self.listed()[1])

    def _own_named(self, name: str) -> K | None:
        """One of our own; the module of that name is imported first, and often alone."""
        if self._own is None:
            for module in self._modules():
                if module.rpartition(".")[2] == name:
                    for one in self._declared(module):
                        if one.name == name:
                            return one
        return next((one for one in self.own() if one.name == name), None)

    def _modules(self) -> list[str]:
        if self._package is None:
            return []
        package = import_module(self._package)
        found = pkgutil.walk_packages(package.__path__, f"{self._package}.")
        names = [one.name for one in found if not one.ispkg]
        last = self._module
        return [name for name in names if last is None or name.rpartition(".")[2] == last]

    def _declared(self, module: str) -> tuple[K, ...]:
        kinds: tuple[K, ...] = getattr(import_module(module), "KINDS", ())
        return kinds

    def _points(self) -> Iterator[EntryPoint]:
        yield from sorted(
            entry_points(group=self.group), key=lambda one: (one.name, _distribution(one))
        )

    def _load(self, point: EntryPoint) -> Listed[K] | Broken:
        """What an entry point stands for; one that could be loaded stays."""
        distribution = _distribution(point)
        place = f"{point.name} {distribution} {point.value}"
        with self._lock:
            known = self._loaded.get(place)
            if known is None:
                known = self._checked(point, distribution)
                self._loaded[place] = known
            return known

    def _checked(self, point: EntryPoint, distribution: str) -> Listed[K] | Broken:
        found = loaded(point)
        if isinstance(found, Broken):
            return found
        if not isinstance(found, self._of) or found.name != point.name:
            shown = f"one called {found.name!r}" if isinstance(found, self._of) else repr(found)
            what = f"a {self._of.__name__} called {point.name!r}"
            reason = f"expected {point.value} to be {what}; found {shown}"
            return Broken(point.name, distribution, reason)
        return Listed(found, distribution)


def loaded(point: EntryPoint) -> Any:
    """What an entry point stands for; `Broken` where it can't be loaded."""
    try:
        return point.load()
    except Exception as error:  # noqa: BLE001 - it is code of others
        reason = f"{type(error).__name__}: {error}"
        return Broken(point.name, _distribution(point), reason.strip())


def _distribution(point: EntryPoint) -> str:
    """The distribution of an entry point, with its version."""
    if point.dist is None:
        return "(unknown)"
    return f"{point.dist.name} {point.dist.version}"
