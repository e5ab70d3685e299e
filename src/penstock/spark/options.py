"""Options of the source, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import UserError

__all__ = ["Options"]

KNOWN: Final = (
    *("path", "view", "version", "topic", "log", "values", "catalog", "warehouse"),
    *("changes", "start", "end", "key", "maxoffsetspertrigger", "checkpointlocation"),
)
"""In lower case, as Spark gives them. `path` and `checkpointLocation` are Spark's own."""


@dataclass(frozen=True)
class Options:
    """What the user has said.

    Attributes:
        given: by name, in lower case.
        home: the directory that relative paths are relative to.
    """

    given: Mapping[str, str]
    home: str

    @staticmethod
    def of(given: Mapping[str, str], home: str) -> Options:
        """Checks the names.

        Raises:
            UserError: an option that there isn't.
        """
        found = {name.lower(): value for name, value in given.items()}
        unknown = sorted(set(found) - set(KNOWN))
        if unknown:
            raise UserError(
                f"expected options among {', '.join(KNOWN)}; found {', '.join(unknown)}"
            )
        if ("view" in found) == ("topic" in found):
            raise UserError(
                "expected one of the options view and topic; found "
                f"{'both' if 'view' in found else 'neither'}. Use .option('view', NAME) with "
                ".load(DIRECTORY) of an app, or .option('topic', NAME) with .option('log', ADDRESS)"
            )
        return Options(found, home)

    @property
    def is_view(self) -> bool:
        """Whether a view is meant, not a topic."""
        return "view" in self.given

    @property
    def wants_changes(self) -> bool:
        """Whether a view's changes are meant, not its rows.

        Raises:
            UserError: the option is neither true nor false.
        """
        said = (self.get("changes") or "false").lower()
        if said not in {"true", "false"}:
            raise UserError(f"expected the option 'changes' as true or false; found {said!r}")
        return said == "true"

    @property
    def app(self) -> str:
        """The app's name, its directory, or the URI of its state.

        Raises:
            UserError: it wasn't said.
        """
        where = self.need("path", "the app's directory: .load('shop.penstock')")
        return where if "://" in where else str(Path(self.home) / where)

    def get(self, name: str) -> str | None:
        """An option's text; None where it wasn't said."""
        return self.given.get(name.lower())

    def need(self, name: str, what: str) -> str:
        """An option's text.

        Raises:
            UserError: it wasn't said.
        """
        found = self.get(name)
        if not found:
            raise UserError(f"expected the option {name!r}, {what}; found none")
        return found

    def number(self, name: str) -> int | None:
        """An option's whole number of zero or more; None where it wasn't said.

        Raises:
            UserError: it is none.
        """
        text = self.get(name)
        if text is None:
            return None
        if not text.isdecimal():
            raise UserError(f"expected the option {name!r} as a number; found {text!r}")
        return int(text)
