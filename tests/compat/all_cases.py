"""All cases, by name. A case stays as it is from the first release on that has a fixture of it."""

from __future__ import annotations

import random
from typing import Final

from tests.compat.cases import Case
from tests.compat.databases import DATABASES
from tests.compat.directories import DIRECTORIES
from tests.compat.logs import LOGS
from tests.compat.pipelines import Pipeline
from tests.compat.programs import feeds, queries, tables, windows

from penstock.testing import Run


def _all(run: Run, chance: random.Random, number: int) -> None:
    feeds.events(run, chance, number)
    feeds.users(run, chance, number)
    feeds.orders(run, chance, number)


def _streams(run: Run, chance: random.Random, number: int) -> None:
    for topic in ("events", "marked", "sent", "clocked"):
        feeds.events(run, chance, number, topic)


PIPELINES: Final = (
    Pipeline("windows", windows.windows, _all, goes_back=True),
    Pipeline("rolling", windows.rolling, _all, goes_back=True, is_slow=True),
    Pipeline("producers", windows.producers, _streams),
    Pipeline("aggregates", tables.aggregates, _all, goes_back=True, is_slow=True),
    Pipeline("joins", tables.joins, _all, is_slow=True),
    Pipeline("keyed", tables.keyed, _all, goes_back=True, is_slow=True),
    Pipeline("processes", tables.processes, _all, is_slow=True),
    Pipeline("queries", queries.first_queries, _all, is_slow=True),
    Pipeline("more-queries", queries.other_queries, _all, is_slow=True),
    Pipeline("program", queries.program, _all, goes_back=True),
    Pipeline("transactions", queries.transactions, _all, ends="output"),
    Pipeline("upgraded", queries.large_shop, _all, before=queries.small_shop, is_slow=True),
    Pipeline("upgrading", queries.large_shop, _all, before=queries.small_shop, ends="upgrade"),
    Pipeline("planned", queries.large_shop, _all, ends="plan", is_slow=True),
)

CASES: Final[dict[str, Case]] = {
    one.name: one for one in (*(one.case() for one in PIPELINES), *LOGS, *DATABASES, *DIRECTORIES)
}
