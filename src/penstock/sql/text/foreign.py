"""Forms of other systems' SQL, and what to write here.

A form is looked for only in what is refused: as a whole where it can't be read, else where its message names
a word of the form. Most of what other systems write means the same here.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["FORMATS", "OPTIONS", "Foreign", "begun", "named", "unread"]

_TOKEN: Final = re.compile(
    r"""--[^\n]*|/\*.*?\*/|\s+|(?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|[\w$]+|.)""",
    re.DOTALL,
)
_NAME: Final = r"\w+|\"[^\"]*\"|`[^`]*`"
_PROPOSED: Final = re.compile(r"Candidate bindings|Did you mean|did you mean")
"""Behind it are names that there are."""
_COMMON: Final = frozenset({"table", "from", "group", "window", "join", "with", "for", "size"})
_WINDOW: Final = "FROM TUMBLE(stream, at, INTERVAL 1 MINUTE) … GROUP BY window_start"


@dataclass(frozen=True)
class Foreign:
    """A form in a text.

    Attributes:
        message: what to write, and what was found.
        start: where the form begins, from 0.
    """

    message: str
    start: int


# Patterns see words and marks with one space between them, in any case. `{0}` and others in what to write are
# a pattern's groups.
_STATEMENTS: Final[tuple[tuple[str, str, str], ...]] = (
    (r"EXECUTE STATEMENT SET|BEGIN STATEMENT SET", "CREATE SINK for each INSERT", "Flink"),
    (r"(?:CREATE|USE) CATALOG", "SET log = 'host:9092', and topics by their names", "Flink"),
    (
        rf"CREATE (?:OR REPLACE )?STREAM ({_NAME}) (?:WITH \([^;]*?\) )?AS",
        "CREATE VIEW {0} AS SELECT … for a query with a name, or CREATE SINK {0} INTO topic AS SELECT …",
        "ksqlDB",
    ),
    (
        rf"CREATE (?:OR REPLACE )?TABLE ({_NAME}) WITH \([^;]*?\) AS",
        "CREATE MATERIALIZED VIEW {0} AS SELECT …",
        "ksqlDB",
    ),
    (
        r"CREATE (?:SOURCE|SINK) CONNECTOR",
        "CREATE TABLE … FROM POSTGRES '…' to read a database, CREATE SINK … INTO 'address' to write one",
        "ksqlDB",
    ),
    (r"INSERT INTO \S+ SELECT", "CREATE SINK name INTO topic AS SELECT …", "Flink and ksqlDB"),
    (
        r"(?:SHOW|LIST|PRINT|DESCRIBE|TERMINATE)\b",
        "CREATE: a program describes what there is to be",
        "ksqlDB",
    ),
    (
        r"(?:SELECT|WITH|FROM|VALUES)\b",
        "CREATE MATERIALIZED VIEW name AS SELECT … (penstock query runs a SELECT over views)",
        "",
    ),
    (
        r"(?:INSERT|UPDATE|DELETE|MERGE|COPY|TRUNCATE)\b",
        "CREATE: rows come from topics, or from CREATE TABLE name AS VALUES …",
        "",
    ),
    (
        r"(?:DROP|ALTER)\b",
        "CREATE: a program describes what there is to be, and a view that it doesn't name is dropped",
        "",
    ),
    (r"REFRESH\b", "CREATE: each batch keeps views up to date", "PostgreSQL"),
    (
        r"CREATE (?:UNIQUE )?INDEX\b",
        "CREATE STREAM, TABLE, VIEW, MATERIALIZED VIEW, SINK: rows are found by their keys without an index",
        "PostgreSQL",
    ),
    (
        r"CREATE (?:GLOBAL |LOCAL )?(?:TEMP|TEMPORARY|UNLOGGED|EXTERNAL|FOREIGN)\b",
        "CREATE TABLE, VIEW or MATERIALIZED VIEW alone",
        "PostgreSQL",
    ),
    (
        r"CREATE (?:OR REPLACE )?(?:FUNCTION|MACRO|PROCEDURE|TRIGGER)\b",
        "an expression in the query, or map_batches(…) and process(…) in Python",
        "PostgreSQL",
    ),
    (
        r"CREATE (?:TYPE|DOMAIN|SEQUENCE|SCHEMA|DATABASE|EXTENSION|ROLE|USER|POLICY|PUBLICATION)\b",
        "CREATE STREAM, TABLE, VIEW, MATERIALIZED VIEW, SINK",
        "PostgreSQL",
    ),
    (
        rf"CREATE (?:OR REPLACE )?(?:MATERIALIZED )?\w+ (?:{_NAME}) \. ({_NAME})",
        "a name without a schema, such as {0}",
        "PostgreSQL",
    ),
    (
        rf"CREATE (?:OR REPLACE )?(?:MATERIALIZED )?VIEW ({_NAME}) \(",
        "CREATE VIEW {0} AS SELECT x AS a, …: a view's columns have their names in the query",
        "PostgreSQL",
    ),
)
"""How whole statements begin."""
_SYNTAX: Final[tuple[tuple[str, str, str], ...]] = (
    (
        rf"(?:TABLE \( )?(TUMBLE|SESSION|HOP) \( TABLE ({_NAME}) , DESCRIPTOR \( ({_NAME}) \)",
        "FROM {0}({1}, {2}, INTERVAL …)",
        "Flink",
    ),
    (r"TABLE \( (?:TUMBLE|HOP|SESSION|CUMULATE) \(", _WINDOW, "Flink"),
    (r"DESCRIPTOR \(", f"the column alone, as in {_WINDOW}", "Flink"),
    (r"FOR SYSTEM_TIME AS OF", "ASOF JOIN … ON … AND a.at >= b.at, or a plain JOIN", "Flink"),
    (
        r"OVER \((?=(?:(?!MATCH_RECOGNIZE)[^;])*? PATTERN \()",
        "OVER w, and the pattern in WINDOW w AS (…)",
        "Trino",
    ),
    (
        r"WINDOW TUMBLING \( SIZE (\w+) (\w+)",
        "FROM TUMBLE(stream, at, INTERVAL {0} {1}) … GROUP BY window_start",
        "ksqlDB",
    ),
    (
        r"WINDOW HOPPING \( SIZE (\w+) (\w+) , ADVANCE BY (\w+) (\w+)",
        "FROM HOP(stream, at, INTERVAL {2} {3}, INTERVAL {0} {1}) … GROUP BY window_start",
        "ksqlDB",
    ),
    (
        r"WINDOW SESSION \( (\w+) (\w+)",
        "FROM SESSION(stream, at, INTERVAL {0} {1}) … GROUP BY window_start, window_end",
        "ksqlDB",
    ),
    (r"GRACE PERIOD", "WATERMARK FOR at AS at - INTERVAL … in CREATE STREAM", "ksqlDB"),
    (r"EMIT FINAL", "EMIT ON CLOSE in CREATE SINK", "ksqlDB"),
    (
        rf"JOIN (?:{_NAME})(?: (?:AS )?(?:{_NAME}))? WITHIN",
        "ON … AND b.at BETWEEN a.at - INTERVAL 1 HOUR AND a.at + INTERVAL 1 HOUR",
        "ksqlDB",
    ),
    (r"WITH (?:NO )?DATA$", "the end of the query", "PostgreSQL"),
    (r"`[^`]*`", 'a name in double quotes, such as "name"', "Flink and MySQL"),
)
"""What can't be read."""
_NAMES: Final[tuple[tuple[str, str, str], ...]] = (
    (r"(?:TUMBLE|HOP|SESSION)_(?:START|END|ROWTIME|PROCTIME) \(", _WINDOW, "Flink"),
    (r"GROUP BY (?:(?!FROM)[^;()])*\b(?:TUMBLE|HOP|SESSION) \(", _WINDOW, "Flink"),
    (r"MATCH_(?:ROW|PROC)TIME \(", "last(at), the time of a match's last row", "Flink"),
    (
        r"MATCH_SEQUENCE_NUMBER \(",
        "RUNNING count(*), the number of a row in its match",
        "Snowflake",
    ),
    (r"CUMULATE \(", "windows of one size: TUMBLE, HOP or SESSION", "Flink"),
    (
        r"PROCTIME \( \)",
        "CREATE STREAM … WITH (time = 'processing'), for windows by the clock",
        "Flink",
    ),
    (
        r"TO_TIMESTAMP_LTZ \(",
        "to_timestamp(x) of seconds, or make_timestamptz(x * 1000) of milliseconds",
        "Flink",
    ),
    (
        r"\bROWTIME\b",
        "the column of WATERMARK FOR, or TUMBLE(stream, INTERVAL 1 MINUTE) over the records' timestamps",
        "ksqlDB",
    ),
    (r"\bROWKEY\b", "the column that CREATE STREAM names in WITH (key = …)", "ksqlDB"),
    (r"\bWINDOW(?:START|END)\b", "window_start or window_end", "ksqlDB"),
    (r"LATEST_BY_OFFSET \(", "max_by(x, at)", "ksqlDB"),
    (r"EARLIEST_BY_OFFSET \(", "min_by(x, at)", "ksqlDB"),
    (r"COLLECT_LIST \(", "list(x)", "ksqlDB"),
    (r"COLLECT_SET \(", "list(DISTINCT x)", "ksqlDB"),
    (r"EXTRACTJSONFIELD \(", "json_extract_string(x, '$.a')", "ksqlDB"),
    (r"(?:STRINGTOTIMESTAMP|PARSE_TIMESTAMP) \(", "strptime(x, '%Y-%m-%d %H:%M:%S')", "ksqlDB"),
    (r"(?:TIMESTAMPTOSTRING|FORMAT_TIMESTAMP) \(", "strftime(x, '%Y-%m-%d %H:%M:%S')", "ksqlDB"),
    (r"EXPLODE \(", "unnest(x)", "ksqlDB"),
)
"""What can be read, and isn't known."""

OPTIONS: Final[Mapping[str, str]] = {
    "connector": "no connector, as CREATE STREAM reads a topic of the log (CREATE TABLE … FROM POSTGRES and "
    "CREATE SINK … INTO name other systems)",
    "kafka_topic": "topic = '…'",
    "value_format": "format = 'json'",
    "value.format": "format = 'json'",
    "key_format": "no format of keys, which are text",
    "key.format": "no format of keys, which are text",
    "key.fields": "key = '…', a column",
    "timestamp": "WATERMARK FOR column among the columns",
    "timestamp_format": "name AS strptime(column, '…') among the columns",
    "value_delimiter": "delimiter = '…' with format = 'csv'",
    "replicas": "penstock topics create, for a topic with replicas",
    "properties.bootstrap.servers": "SET log = 'host:9092' in the program, or App(log='host:9092')",
    "properties.group.id": "no group, as a pipeline keeps its offsets with its state",
    "scan.startup.mode": "no start, as a pipeline reads each topic from its first record",
    "value.avro-confluent.url": "registry = 'http://…'",
    "avro-confluent.url": "registry = 'http://…'",
    "sink.partitioner": "no partitioner, as records are partitioned by key",
}
"""What to write instead of options that Flink and ksqlDB have."""

FORMATS: Final[Mapping[str, str]] = {
    "json_sr": "json-schema",
    "delimited": "csv",
    "avro-confluent": "avro",
    "protobuf_nosr": "protobuf",
    "debezium-json": "debezium",
    "maxwell-json": "maxwell",
}
"""The same of formats."""


def begun(text: str) -> Foreign | None:
    """A form of another system with which a statement begins that can't be read."""
    return _first(text, _STATEMENTS, lambda match: match.start() == 0)


def unread(text: str) -> Foreign | None:
    """The first form of another system in a text that can't be read."""
    return _first(text, _SYNTAX, lambda _: True)


def named(text: str, refusal: str) -> Foreign | None:
    """The first form of another system in a query of which its refusal has a word."""
    said = _PROPOSED.split(refusal, maxsplit=1)[0].lower()
    return _first(text, _SYNTAX + _NAMES, lambda match: _is_named(match[0], said))


def _first(
    text: str,
    forms: tuple[tuple[str, str, str], ...],
    counts: Callable[[re.Match[str]], bool],
) -> Foreign | None:
    """The first of some forms in a text."""
    parts = [one for one in _TOKEN.finditer(text) if one["text"] is not None]
    joined = " ".join(one[0] for one in parts)
    places = [0]
    for one in parts:
        places.append(places[-1] + len(one[0]) + 1)
    found: Foreign | None = None
    for pattern, write, system in forms:
        match = re.search(pattern, joined, re.IGNORECASE)
        if match is None or not counts(match):
            continue
        start = parts[bisect_right(places, match.start()) - 1].start()
        end = parts[bisect_left(places, match.end()) - 1].end()
        if found is None or start < found.start:
            shown = " ".join(text[start:end].split())
            by = f", as in {system}" if system else ""
            message = f"expected {write.format(*match.groups())}; found {shown!r}{by}"
            found = Foreign(message, start)
    return found


def _is_named(form: str, said: str) -> bool:
    words = [one for one in re.findall(r"\w{3,}", form.lower()) if one not in _COMMON]
    return any(re.search(rf"\b{re.escape(word)}\b", said) for word in words)
