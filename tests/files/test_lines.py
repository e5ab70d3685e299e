"""Where lines come from."""

from __future__ import annotations

import gzip
import io
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_S, wait_until

from penstock.errors import UserError
from penstock.files.lines import LINE_BYTES_MAX, Lines


def read(path: Path | str, **options: Any) -> list[bytes]:
    """All lines of a file."""
    lines = Lines(str(path), follow=False, stop=threading.Event(), **options)
    return [line for block in lines.blocks(lambda _: None) for line in block]


@pytest.mark.parametrize("end", [b"\n", b"", b"\r\n"])
def test_plain_and_gzipped_files_give_the_same_lines(tmp_path: Path, end: bytes) -> None:
    """Compression is found by content, not by name; the last line needs no end."""
    text = b"a\n\r\nb b" + end
    (tmp_path / "plain").write_bytes(text)
    (tmp_path / "zipped").write_bytes(gzip.compress(text))
    (tmp_path / "joined").write_bytes(gzip.compress(text[:3]) + gzip.compress(text[3:]))
    for name in ("plain", "zipped", "joined"):
        assert read(tmp_path / name) == [b"a", b"", b"b b"]


def test_large_files_come_whole(tmp_path: Path) -> None:
    """Lines that blocks cut in two are put together."""
    lines = [b"%d " % i + b"x" * (i % 200) for i in range(100_000)]
    (tmp_path / "big").write_bytes(gzip.compress(b"\n".join(lines), 1))
    assert read(tmp_path / "big") == lines


def test_empty_files_have_no_lines(tmp_path: Path) -> None:
    """Nothing is no line."""
    (tmp_path / "empty").write_bytes(b"")
    assert read(tmp_path / "empty") == []


def test_endless_lines_are_cut(tmp_path: Path) -> None:
    """A file without line ends costs no more memory than a line may have."""
    (tmp_path / "one").write_bytes(b"x" * (LINE_BYTES_MAX * 2 + 5))
    assert [len(line) for line in read(tmp_path / "one")] == [LINE_BYTES_MAX, LINE_BYTES_MAX, 5]


def test_broken_gzip_is_an_error_after_its_good_lines(tmp_path: Path) -> None:
    """What could be read comes; then the message says that the end is missing, or what is wrong."""
    whole = gzip.compress(os.urandom(1000).hex().encode() * 50)
    (tmp_path / "cut").write_bytes(whole[:-20])
    with pytest.raises(UserError, match="end too early"):
        read(tmp_path / "cut")
    (tmp_path / "bad").write_bytes(whole[:40] + b"\0" * 40 + whole[80:])
    with pytest.raises(UserError, match="expected gzip data"):
        read(tmp_path / "bad")


def test_missing_files_and_directories_are_refused_at_once(tmp_path: Path) -> None:
    """The message names the file and the reason."""
    with pytest.raises(UserError, match="nope"):
        read(tmp_path / "nope")
    with pytest.raises(UserError, match="directory"):
        read(tmp_path)


def test_standard_input_is_read_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """`-` gives lines while the pipe is still open."""
    there, here = os.pipe()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(os.fdopen(there, "rb")))
    blocks = Lines("-", follow=False, stop=threading.Event()).blocks(lambda _: None)
    os.write(here, b"a\nb\n")
    assert next(blocks) == [b"a", b"b"]
    os.write(here, b"c")
    os.close(here)
    assert list(blocks) == [[b"c"]]
    sys.stdin.close()


def test_following_goes_on_through_growth_rotation_and_truncation(tmp_path: Path) -> None:
    """Every line comes once; a line without its end waits, unless its file is replaced."""
    path, stop = tmp_path / "log", threading.Event()
    path.write_bytes(b"1\n2")
    lines, files = Lines(str(path), follow=True, stop=stop), []
    got: list[bytes] = []

    def collect() -> None:
        for block in lines.blocks(files.append):
            got.extend(block)

    thread = threading.Thread(target=collect)
    thread.start()

    def wait_for(expected: list[bytes]) -> None:
        wait_until(lambda: got == expected, lambda: f"{expected}, found {got}")

    wait_for([b"1"])
    with path.open("ab") as file:
        file.write(b"2\n3")
    wait_for([b"1", b"22"])
    path.rename(tmp_path / "log.1")
    path.write_bytes(b"longer\n")
    wait_for([b"1", b"22", b"3", b"longer"])
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(b"5\n")  # shorter than what was read: seen, whether its end was or not
    wait_for([b"1", b"22", b"3", b"longer", b"5"])
    stop.set()
    thread.join(PATIENCE_S)
    assert len(files) == 3
    assert files[0] != files[1]
