"""A kind of database that is captured: files of SQLite, with another scheme."""

from __future__ import annotations

from dataclasses import replace

from penstock.capture import Database, Kind, Settings
from penstock.capture.databases.sqlite import SQLITE


def _sqlite(url: str) -> str:
    return url.replace("ledger://", "sqlite://", 1)


def _open(settings: Settings) -> Database:
    return SQLITE.open(replace(settings, url=_sqlite(settings.url)))


LEDGER: Kind = replace(
    SQLITE,
    name="ledger",
    schemes=("ledger",),
    words=("LEDGER",),
    address=lambda text: text if text.startswith("ledger://") else f"ledger:///{text}",
    open=_open,
    look=lambda url, state: SQLITE.look(_sqlite(url), state),
    forget=lambda url, name, state: SQLITE.forget(_sqlite(url), name, state),
    describe=lambda url, table: SQLITE.describe(_sqlite(url), table),
)
