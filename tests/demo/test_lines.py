"""Access log lines to events."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.demo.lines import values_of_lines

GOOD = b'1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET /a?b=1 HTTP/1.1" 200 512 "ref" "agent"'
SLOW = re.compile(r'(\S+) \S+ [^\[]*\[([^\]]+)\] "((?:[^"\\]|\\.)*)" (\d{3}) (\d+|-)', re.ASCII)


def events(*lines: bytes) -> list[Any]:
    """What the lines become; a line that doesn't match is its bytes."""
    values, _ = values_of_lines(lines)
    out = []
    for value in values.to_pylist():
        try:
            out.append(json.loads(value))
        except ValueError:
            out.append(value)
    return out


def test_a_combined_line_becomes_an_event() -> None:
    """Address, time, method, path without its query, status and bytes."""
    assert events(GOOD) == [
        {
            "ip": "1.2.3.4",
            "at": "2015-05-17T10:05:03Z",
            "method": "GET",
            "path": "/a",
            "status": 200,
            "bytes": 512,
        }
    ]


def test_common_format_no_size_other_zones_and_users() -> None:
    """What servers write besides: no referrer, '-' for no bytes, a local zone, a user with spaces."""
    line = b'::1 - frank smith [01/Jan/2026:00:30:00 +0200] "POST /x HTTP/2.0" 304 -'
    assert events(line)[0] | {"ip": 0} == {
        "ip": 0,
        "at": "2025-12-31T22:30:00Z",
        "method": "POST",
        "path": "/x",
        "status": 304,
        "bytes": 0,
    }


def test_a_cut_off_user_agent_still_counts() -> None:
    """What comes after the bytes is not looked at."""
    assert events(GOOD.removesuffix(b'"'))[0]["status"] == 200


@pytest.mark.parametrize(
    ("request_", "path"),
    [
        (rb"-", "-"),
        (rb"\x16\x03\x01", r"\x16\x03\x01"),
        (rb"GET /\"quoted\" HTTP/1.1", r"/\"quoted\""),
        (b"GET /a b HTTP/1.1", "GET /a b HTTP/1.1"),
        (b"", ""),
    ],
)
def test_odd_requests_count_with_all_of_them_as_path(request_: bytes, path: str) -> None:
    """Scanners send anything; the server answered, so it is a request."""
    line = b'1.2.3.4 - - [17/May/2015:10:05:03 +0000] "%b" 400 0 "-" "-"' % request_
    assert events(line)[0]["path"] == path


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"junk",
        b"\xff\xfe" + GOOD,
        GOOD.replace(b"May", b"Foo"),
        GOOD.replace(b"17/May", b"32/May"),
        GOOD.replace(b" 200 ", b" x "),
        GOOD.replace(b" 512 ", b" 99999999999999999999 "),
    ],
)
def test_other_lines_go_on_as_they_are(line: bytes) -> None:
    """What isn't a log line reaches the decoder byte for byte, in its place."""
    values, bad = values_of_lines([GOOD, line, GOOD])
    assert values[1].as_py() == line
    assert bad == 1
    assert values[0] == values[2]


def test_a_line_of_json_cannot_pass_for_an_event() -> None:
    """A line that someone else made to look like ours is not taken for one."""
    forged = b' {"at":"2015-05-17T10:05:03Z","status":200,"bytes":1}'
    assert events(forged) == [forged.decode()]


@given(
    st.lists(
        st.binary(max_size=80)
        | st.just(GOOD)
        | st.builds(
            lambda r, s: b'h - - [17/May/2015:10:05:03 +0000] "' + r + b'" ' + s + b" 1",
            st.text("GET /?\\\"' HTP1.", max_size=20).map(str.encode),
            st.sampled_from([b"200", b"20", b"2000"]),
        ),
        max_size=8,
    )
)
def test_every_line_matches_as_a_plain_pattern_says(lines: list[bytes]) -> None:
    """The fast patterns agree with one simple pattern, line by line and in order."""
    values, _ = values_of_lines(lines)
    assert len(values) == len(lines)
    for line, value in zip(lines, values.to_pylist(), strict=True):
        found = _plainly(line)
        if found is None:
            assert value == line or (line.lstrip()[:1] == b"{" and value[:1] == b'"')
        else:
            event = json.loads(value)
            assert (event["at"], event["status"], event["bytes"]) == found


def _plainly(line: bytes) -> tuple[str, int, int] | None:
    try:
        match = SLOW.match(line.decode())
    except UnicodeDecodeError:
        return None
    if match is None:
        return None
    try:
        at = datetime.strptime(match[2], "%d/%b/%Y:%H:%M:%S %z").astimezone(UTC)
    except ValueError:
        return None
    return f"{at:%Y-%m-%dT%H:%M:%SZ}", int(match[4]), int(match[5].replace("-", "0"))
