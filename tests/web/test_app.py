"""The page's HTTP side, driven without a server."""

from __future__ import annotations

import asyncio
import threading
from decimal import Decimal
from io import BytesIO
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.patience import PATIENCE_S

from penstock.serve import Failure
from penstock.web import api, create_app
from penstock.web.api import ROWS_MAX


def test_the_page_and_its_files_are_served_with_a_strict_policy(client: Any) -> None:
    """The page loads nothing from elsewhere: the policy forbids it, and its files are all here."""
    page = client.get("/")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "https://" not in page.text
    for name in ("app.js", "chart.js", "format.js", "style.css", "icon.svg"):
        assert client.get(f"/static/{name}").status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example"]
)
def test_another_host_name_is_refused(client: Any, host: str) -> None:
    """A name that was rebound to loopback gets nothing."""
    assert client.get("/api/views", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["127.0.0.1:8750", "localhost:9999", "[::1]:8750", "localhost"])
def test_loopback_names_are_answered(client: Any, host: str) -> None:
    """Every name of this machine's loopback works, with any port."""
    assert client.get("/api/views", headers={"host": host}).status_code == 200


def test_requests_from_other_sites_are_refused(client: Any) -> None:
    """A page of another site can't make the browser ask for queries here."""
    for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "https://evil.example"}):
        assert client.get("/api/query?sql=SELECT 1", headers=headers).status_code == 403
    same = {"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1:8750"}
    answer = client.get("/api/views", headers=same)
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


FAILED = Failure("load", "values", 2, "Conversion Error: 'ä'", "s::INT", "load")


def test_answers_warn_of_values_that_failed(views: Any, ask: Any) -> None:
    """JSON has a list of warnings with whatever was read of a view; a file has them as headers."""
    views.failures = {"load": (FAILED,), "total": ()}
    client = ask(views)
    listed = {one["name"]: one["warnings"] for one in client.get("/api/views").json()["views"]}
    assert listed == {"load": [FAILED.text], "total": []}
    query = "/api/query?sql=SELECT count(*) FROM load"
    for path in ("/api/views/load", query):
        assert client.get(path).json()["warnings"] == [FAILED.text]
    for path in ("/api/views/load/export", f"{query}&format=csv"):
        saved = client.get(path).headers.get_list("penstock-warning")
        assert saved == [FAILED.text.replace("ä", "?")]
    assert "penstock-warning" not in client.get("/api/views/total/export").headers


def test_views_are_described_with_keys_and_measures(client: Any) -> None:
    """The page learns from the list what to draw, numeric keys included."""
    found = {view["name"]: view for view in client.get("/api/views").json()["views"]}
    assert found["load"]["keys"] == ["core"]
    assert found["load"]["measures"] == ["load"]
    assert found["total"]["rows"] == 3


def test_rows_come_newest_first_and_limited(client: Any) -> None:
    """A page of rows holds the newest windows, and says how many there are."""
    page = client.get("/api/views/load?limit=2").json()
    assert page["rows_total"] == 6
    assert [row[0] for row in page["rows"]] == ["1970-01-01T00:02:00Z"] * 2


@pytest.mark.parametrize(
    "since", ["60000000", "1970-01-01T00:01:00Z", "1970-01-01T01:01:00%2B01:00"]
)
def test_since_leaves_out_older_windows(client: Any, since: str) -> None:
    """`since` is microseconds or an ISO instant with any offset."""
    assert client.get(f"/api/views/load?since={since}").json()["rows_total"] == 4


def test_mistakes_are_explained_in_json(client: Any) -> None:
    """A wrong name, number, instant, measure or query gives a message, not a page of traceback."""
    for path, code in (
        ("/api/views/nope", 404),
        ("/api/views/load?limit=x", 400),
        ("/api/views/load?limit=0", 400),
        ("/api/views/load?since=yesterday", 400),
        ("/api/views/load/series?measure=nope", 400),
        ("/api/query?sql=", 400),
        ("/api/query?sql=SELEC", 400),
    ):
        answer = client.get(path)
        assert answer.status_code == code, path
        assert answer.json()["error"]


def test_query_answers_with_types(client: Any) -> None:
    """SQL over the views comes back as columns with kinds and rows."""
    page = client.get(
        "/api/query", params={"sql": "SELECT core, max(load) AS m FROM load GROUP BY 1 ORDER BY 1"}
    )
    assert page.json()["rows"] == [[0, 20.0], [1, 21.0]]
    assert [c["kind"] for c in page.json()["columns"]] == ["number", "number"]


def test_large_answers_are_cut(views: Any, ask: Any) -> None:
    """An answer never has more rows than a page can hold, and says how many there were."""
    client = ask(views)
    page = client.get("/api/query", params={"sql": f"SELECT * FROM range({ROWS_MAX + 5})"}).json()
    assert page["rows_total"] == ROWS_MAX + 5
    assert len(page["rows"]) == ROWS_MAX


def test_a_view_is_read_once_a_version(views: Any, ask: Any) -> None:
    """Several charts and pages share one reading of a version."""
    client = ask(views)
    for _ in range(3):
        client.get("/api/views/load/series")
    assert views.reads == 1
    views.version = 2
    client.get("/api/views/load/series")
    assert views.reads == 2


def test_no_views_yet_is_an_empty_list(ask: Any) -> None:
    """Before the first batch the page gets an empty list and a status."""
    client = ask(None)
    assert client.get("/api/views").json() == {"views": []}
    assert len(client.get("/api/status").json()["history"]) == 1
    assert client.get("/api/query?sql=SELECT 1").status_code == 400


def test_values_that_json_lacks(views: Any, ask: Any) -> None:
    """NaN and infinity are text, for null is NULL; bytes are text, nothing breaks the answer."""
    views.tables["odd"] = pa.table({"x": [float("nan"), float("inf")], "b": [b"\xff", None]})
    client = ask(views)
    assert client.get("/api/views/odd").json()["rows"] == [["NaN", "\ufffd"], ["Infinity", None]]


def test_a_view_that_takes_long_holds_up_only_itself(
    views: Any, shared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks again for what is being read waits for the same reading; other views are answered."""
    monkeypatch.setattr(api, "READ_SECONDS_MAX", 0.2)
    go_on, read, table = threading.Event(), [], views.table

    def slow(name: str, **options: Any) -> pa.Table:
        read.append(name)
        if name == "load":
            go_on.wait(PATIENCE_S)
        return table(name, **options)

    views.table = slow
    transport = httpx.ASGITransport(create_app(views, shared.status))

    async def ask() -> None:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for _ in range(4):
                answer = await client.get("/api/views/load")
                assert answer.status_code == 422
                assert "READ_SECONDS_MAX" in answer.json()["error"]
            assert (await client.get("/api/views/total")).json()["rows_total"] == 3
            go_on.set()
            monkeypatch.setattr(api, "READ_SECONDS_MAX", PATIENCE_S)
            assert (await client.get("/api/views/load")).json()["rows_total"] == 6
            assert read == ["load", "total"], "one reading each"

    try:
        asyncio.run(ask())
    finally:
        go_on.set()


def test_a_view_is_saved_as_csv(client: Any, views: Any) -> None:
    """Every value as the page shows it; NULL is nothing, an empty text is two quotes."""
    views.tables["kinds"] = pa.table(
        {
            "at": pa.array([0, None], pa.int64()).cast(pa.timestamp("us", "UTC")),
            "text": ["", 'a "b", c'],
            "price": pa.array([Decimal("0.10"), None], pa.decimal128(10, 2)),
            "tags": [["x", "y"], None],
            "big": [2**62, None],
            "ok": [True, None],
        }
    )
    answer = client.get("/api/views/kinds/export?format=csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="kinds.csv"'
    assert answer.text.splitlines() == [
        '"at","text","price","tags","big","ok"',
        '"1970-01-01T00:00:00Z","","0.10","[""x"",""y""]",4611686018427387904,true',
        ',"a ""b"", c",,,,',
    ]


def test_views_and_answers_are_saved_as_parquet(client: Any, views: Any) -> None:
    """The columns as they are, with their types."""
    answer = client.get("/api/views/load/export?format=parquet")
    assert pq.read_table(BytesIO(answer.content)).equals(views.tables["load"])
    answer = client.get("/api/query?format=parquet&sql=SELECT sum(n) AS n FROM total")
    assert pq.read_table(BytesIO(answer.content)).to_pylist() == [{"n": 300}]


def test_an_answer_is_never_saved_in_part(client: Any) -> None:
    """One with more rows than the page gets is refused, with what has no limit."""
    answer = client.get(f"/api/query?format=csv&sql=SELECT * FROM range({ROWS_MAX + 1})")
    assert answer.status_code == 422
    assert "penstock query --format csv" in answer.json()["error"]
    assert client.get("/api/query?format=xlsx&sql=SELECT 1").status_code == 400
    assert client.get("/api/views/load/export?format=xlsx").status_code == 400
    assert client.get("/api/views/nope/export").status_code == 404


def test_a_chart_may_show_a_stretch_of_time(client: Any) -> None:
    """Counted back from the newest window, so that a replayed past has charts too."""
    path = "/api/views/total/series?range="
    assert len(client.get(f"{path}2 minutes").json()["windows"]) == 2
    assert len(client.get(f"{path}1 day").json()["windows"]) == 3
    assert client.get(f"{path}soon").status_code == 400
    bounds = "/api/views/total/series?from=1970-01-01T00:01:00Z"
    starts = [start for start, _ in client.get(bounds).json()["windows"]]
    assert starts == ["1970-01-01T00:01:00Z", "1970-01-01T00:02:00Z"]
    found = client.get(f"{bounds}&to=1970-01-01T00:02:00Z").json()
    assert [start for start, _ in found["windows"]] == starts[:1]
    assert [len(line["values"]) for line in found["series"]] == [1]
    assert client.get(f"{bounds}&to=1970-01-01T00:01:00Z").json()["windows"] == []
    assert client.get("/api/views/total/series?from=noon").status_code == 400
