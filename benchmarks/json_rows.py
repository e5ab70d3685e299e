"""How fast do JSON rows become typed columns, and columns rows, on one core?

Penstock's decoder and encoder beside DuckDB, Polars, pyarrow and orjson, each on one thread and on
the same rows, in rows per second of processor time (a busy machine matters less); the ratio is
Penstock's rate to the peer's. Peers get what suits them best: one buffer of lines, or a column of
strings. Unlike ours, most of them give NULL for a value that doesn't fit, without a reason.

(The module isn't called `json`, or each script in this directory would import it for the library.)
"""

from __future__ import annotations

import os

os.environ["POLARS_MAX_THREADS"] = "1"

import io
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import click
import duckdb
import numpy as np
import orjson
import polars as pl
import pyarrow as pa
import pyarrow.json as pj

from penstock.core.schema import Schema
from penstock.formats.json import JsonDecoder, encode_rows

ROWS = 1_000_000
SMOKE_ROWS = 2_000
REPEATS = 3  # the best counts
PEERS = ("DuckDB", "Polars", "pyarrow", "orjson")

_DUCKDB = {"STRING": "VARCHAR"}
_WITHOUT = ("Polars", "pyarrow")
"""Peers that have no JSON columns."""
_POLARS = {
    "BIGINT": pl.Int64,
    "DOUBLE": pl.Float64,
    "STRING": pl.String,
    "TIMESTAMP": pl.Datetime("us", "UTC"),
    "JSON": pl.String,
}


@dataclass(frozen=True)
class Case:
    """Rows of one shape.

    Attributes:
        name: what is special about them.
        schema: what they are decoded to by Penstock.
        peer_schema: by the peers, where theirs is other (epoch milliseconds as BIGINT).
        rows: the rows.
        without: peers that have no such columns.
    """

    name: str
    schema: str
    peer_schema: str
    rows: list[bytes]
    without: tuple[str, ...] = ()


def cases(rows: int) -> list[Case]:
    r = random.Random(7)
    flat = [
        b'{"user":%d,"v":%.1f,"ts":%d}'
        % (r.randrange(100_000), r.random() * 100, 1_700_000_000_000 + i)
        for i in range(rows)
    ]
    text = [
        b'{"user":"u%d","amount":%d,"at":"2026-11-21T09:%02d:%02d.%03dZ","page":"/p/%d"}'
        % (r.randrange(100_000), r.randrange(1000), i // 60 % 60, i % 60, i % 1000, i % 500)
        for i in range(rows)
    ]
    spaced = [json.dumps(json.loads(row)).encode() for row in text]
    wide = [
        b'{"id":%d,"tags":["a","b"],"note":"a \\"note\\" of %d","geo":{"lat":%.15f},"v":%.14f}'
        % (i, i, r.random() * 90, r.random())
        for i in range(rows)
    ]
    document = [
        b'{"id":%d,"body":{"user":{"id":%d,"tags":["a","b"]},"price":%.2f,"note":"a \\"note\\" of %d"}}'
        % (i, r.randrange(100_000), r.random() * 100, i)
        for i in range(rows)
    ]
    strings = "user STRING, amount BIGINT, at TIMESTAMP, page STRING"
    return [
        Case("flat", "user BIGINT, v DOUBLE, ts TIMESTAMP", "user BIGINT, v DOUBLE, ts BIGINT", flat),
        Case("text and time", strings, strings, text),
        Case("with spaces", strings, strings, spaced),
        Case("escapes, other fields", "id BIGINT, note STRING, v DOUBLE",
             "id BIGINT, note STRING, v DOUBLE", wide),
        Case("a JSON column", "id BIGINT, body JSON", "id BIGINT, body JSON", document, _WITHOUT),
    ]  # fmt: skip


def rate(rows: int, work: Callable[[], object]) -> float:
    """Rows per second of processor time, all threads together, of the best run."""
    best = float("inf")
    for _ in range(REPEATS):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return rows / best


def types_of(schema: str) -> list[tuple[str, str]]:
    return [(name, type_) for name, type_ in (part.split() for part in schema.split(", "))]


def decoders(case: Case, connection: duckdb.DuckDBPyConnection) -> dict[str, Callable[[], object]]:
    length = np.array([len(row) for row in case.rows], np.int32)
    start = np.cumsum(length, dtype=np.int64) - length
    buffer = np.frombuffer(b"".join(case.rows), np.uint8)
    decoder = JsonDecoder(Schema.parse(case.schema))
    lines = b"\n".join(case.rows) + b"\n"
    fields = types_of(case.peer_schema)
    shape = json.dumps({name: _DUCKDB.get(type_, type_) for name, type_ in fields})
    connection.register("source", pa.table({"v": pa.array([row.decode() for row in case.rows])}))
    select = ", ".join(f"r.{name}" for name, _ in fields)
    query = f"SELECT {select} FROM (SELECT from_json(v, '{shape}') AS r FROM source)"
    polars_schema = {name: _POLARS[type_] for name, type_ in fields}
    # Neither of these two reads instants with a zone: they get text, and don't parse it.
    plain = {n: (pl.String if t == _POLARS["TIMESTAMP"] else t) for n, t in polars_schema.items()}
    arrow = pa.schema([(n, pl.Series([], dtype=t).to_arrow().type) for n, t in plain.items()])
    options = pj.ParseOptions(explicit_schema=arrow, unexpected_field_behavior="ignore")
    return {
        "Penstock": lambda: decoder.decode(buffer, start, length),
        "DuckDB": lambda: connection.sql(query).to_arrow_table(),
        "Polars": lambda: pl.read_ndjson(io.BytesIO(lines), schema=plain),
        "pyarrow": lambda: pj.read_json(
            io.BytesIO(lines), pj.ReadOptions(use_threads=False, block_size=1 << 22), options
        ),
        "orjson": lambda: [orjson.loads(row) for row in case.rows],
    }


def encoders(case: Case, connection: duckdb.DuckDBPyConnection) -> dict[str, Callable[[], object]]:
    length = np.array([len(row) for row in case.rows], np.int32)
    start = np.cumsum(length, dtype=np.int64) - length
    decoded = JsonDecoder(Schema.parse(case.schema)).decode(
        np.frombuffer(b"".join(case.rows), np.uint8), start, length
    )
    table = pa.Table.from_batches([decoded.columns])
    connection.register("columns", table)
    frame = pl.DataFrame(table)
    documents = [name for name, type_ in types_of(case.schema) if type_ == "JSON"]
    objects = [
        {
            name: orjson.Fragment(value) if name in documents else value
            for name, value in row.items()
        }
        for row in table.to_pylist()
    ]
    texts = ", ".join(f"{name}::JSON AS {name}" for name in documents)
    source = f"(SELECT * REPLACE ({texts}) FROM columns)" if documents else "columns"
    query = f"SELECT to_json(c) FROM {source} AS c"
    return {
        "Penstock": lambda: encode_rows(table),
        "DuckDB": lambda: connection.sql(query).to_arrow_table(),
        "Polars": frame.write_ndjson,
        "orjson": lambda: [orjson.dumps(row) for row in objects],
    }


def measure(rows: int) -> list[dict[str, object]]:
    results: list[dict[str, object]] = []
    with duckdb.connect(config={"threads": 1}) as connection:
        for case in cases(rows):
            for what, works in (("decode", decoders), ("encode", encoders)):
                some = {n: w for n, w in works(case, connection).items() if n not in case.without}
                rates = {name: rate(rows, work) for name, work in some.items()}
                results.append(
                    {
                        "what": what,
                        "rows": case.name,
                        "bytes_per_row": round(sum(map(len, case.rows)) / rows, 1),
                        "rows_per_second": {name: round(value) for name, value in rates.items()},
                        "ratio": {
                            name: round(rates["Penstock"] / rates[name], 2)
                            for name in PEERS
                            if name in rates
                        },
                    }
                )
    return results


def table_text(results: list[dict[str, object]]) -> str:
    lines = [
        f"{'M rows/s (ratio)':32}{'bytes':>6}{'Penstock':>10}" + "".join(f"{p:>16}" for p in PEERS)
    ]
    for result in results:
        rates, ratio = result["rows_per_second"], result["ratio"]
        assert isinstance(rates, dict)
        assert isinstance(ratio, dict)
        cells = [f"{rates[p] / 1e6:.2f} ({ratio[p]:.1f}x)" if p in rates else "-" for p in PEERS]
        lines.append(
            f"{result['what']} {result['rows']:24} {result['bytes_per_row']:6}"
            f"{rates['Penstock'] / 1e6:10.2f}" + "".join(f"{cell:>16}" for cell in cells)
        )
    return "\n".join(lines)


@click.command(help=__doc__)
@click.option("--rows", type=click.IntRange(1), default=ROWS, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option("--smoke", is_flag=True, help=f"{SMOKE_ROWS} rows: does it run?")
def main(*, rows: int, as_json: bool, smoke: bool) -> None:
    results = measure(SMOKE_ROWS if smoke else rows)
    print(json.dumps(results, indent=2) if as_json else table_text(results))


if __name__ == "__main__":
    main()
