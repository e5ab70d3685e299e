"""All that a pipeline has come to, as values that compare."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from penstock.engine.store import Store
from penstock.serve.views import Snapshot
from penstock.state.garbage import live
from penstock.testing import Record

__all__ = ["content", "difference"]

_ATTEMPT = re.compile(r"(\d{12})-[0-9a-f]{12}")


def content(store: Store, topics: Mapping[str, Sequence[Record]]) -> dict[str, Any]:
    """Records of topics by key, rows of views, and state: what it is said to be, and each file's bytes.

    Attempts at batches are left out, as each has a name of its own.
    """
    version = store.version(store.newest_version())
    operators = {name: entry.traces for name, entry in version.operators.items()}
    paths = live(trace for traces in operators.values() for trace in traces.values())
    snapshot = Snapshot(store, version)
    return {
        "topics": {name: _by_key(records) for name, records in topics.items()},
        "views": {
            name: sorted(map(repr, snapshot.table(name).to_pylist())) for name in version.views
        },
        "counts": asdict(version.counts),
        "state": _ATTEMPT.sub(r"\1", json.dumps(operators, sort_keys=True)),
        "files": {_ATTEMPT.sub(r"\1", path): store.files.read(path) for path in paths},
    }


def _by_key(records: Sequence[Record]) -> dict[str, list[Any]]:
    """Each key's records in their order; those of several keys, and without any, are in none."""
    found = defaultdict(list)
    for one in records:
        headers = sorted(
            one.headers.items()
        )  # of dead letters, which are in order by whose they are
        of = [text for name, text in headers if name in {"penstock.topic", "penstock.partition"}]
        found[f"{one.partition} {one.key!r} {of}"].append((one.value, one.timestamp_ms, headers))
    return {
        key: sorted(some, key=repr) if key.endswith("None []") else some
        for key, some in found.items()
    }


def difference(one: Any, other: Any, where: str = "") -> str | None:
    """The first place in which two contents differ; None: there is none."""
    if isinstance(one, dict) and isinstance(other, dict):
        missing = one.keys() ^ other.keys()
        if missing:
            return f"{where}: only one has {sorted(missing)[:5]}"
        pairs = ((str(name), one[name], other[name]) for name in sorted(one))
    elif isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            return f"{where}: {len(one)} and {len(other)}"
        pairs = ((str(i), a, b) for i, (a, b) in enumerate(zip(one, other, strict=True)))
    else:
        return None if one == other else f"{where}: {one!r:.1000} and {other!r:.1000}"
    return next((d for name, a, b in pairs if (d := difference(a, b, f"{where}/{name}"))), None)
