"""`penstock demo`: this machine, or a web server's access log."""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import orjson

from penstock.cli.pipelines.run import How, run_options
from penstock.cli.support.tables import note
from penstock.core.time import duration_us
from penstock.errors import SetupError, UserError

if TYPE_CHECKING:
    from penstock.demo.feed import LineFeed
    from penstock.files.feed import Feed
    from penstock.serve.places import VersionStatus

MARK: Final = "demo.json"  # says that a directory is a demo's, and which file its events are from
LOCK: Final = "demo.lock"
SUMMED: Final = "per_path"  # the view whose requests are summed up at the end


@click.group(
    epilog="""\b
Examples:
  penstock demo machine
  penstock demo weblog access.log.gz --lateness 60s
  zcat access.log.*.gz | penstock demo weblog -
"""
)
def demo() -> None:
    """Watch this machine, or a web server's access log: real events, a pipeline, live views."""


@demo.command()
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    default=Path("machine.penstock"),
    show_default=True,
    help="Where the log and the state are kept; a second run continues from there.",
)
@run_options
def machine(directory: Path, how: How) -> None:
    """Watch this machine: load, memory, disks, networks and processes, live.

    Ctrl-C stops; started again, it continues where it stopped. With --seconds it ends after that time
    and prints the views.
    """
    from penstock.cli.support.programs import load
    from penstock.demo.feed import SampleFeed
    from penstock.demo.machine import Sampler
    from penstock.demo.programs import example

    app = load(example("machine")).pipeline(directory=str(directory))
    sampler = Sampler(lambda: time.time_ns() // 1_000)

    def feeds(address: str) -> Sequence[Feed]:
        return [SampleFeed(_connect(directory, address), _clock_ms, sampler)]

    with _Lock(directory):
        how.host(app, "penstock demo machine", feeds=feeds)


@demo.command(
    epilog="""\b
Examples:
  penstock demo weblog access.log.gz --lateness 60s --no-ui
  penstock demo weblog --follow /var/log/nginx/access.log
"""
)
@click.argument("file")
@click.option(
    "--follow", "-F", is_flag=True, help="Wait for more lines; follow the file when it is rotated."
)
@click.option(
    "--lateness",
    default="60 seconds",
    show_default=True,
    help="A line is late when its window ended this long before the newest line.",
)
@click.option("--window", default="1 minute", show_default=True, help="The size of the windows.")
@click.option(
    "--until-done/--no-until-done",
    default=None,
    help="End when all lines are processed. Default: yes, unless --follow.",
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    default=Path("weblog.penstock"),
    show_default=True,
    help="Where the log and the state are kept.",
)
@click.option(
    "--continue",
    "go_on",
    is_flag=True,
    help="Continue where an earlier run with this file stopped. --follow always does.",
)
@run_options
def weblog(
    file: str,
    lateness: str,
    window: str,
    until_done: bool | None,  # noqa: FBT001 - click gives it by name
    directory: Path,
    how: How,
    *,
    follow: bool,
    go_on: bool,
) -> None:
    """Count requests, bytes and errors per minute and per path of an access log.

    FILE is in common or combined log format, gzipped or not, or - for standard input. A path has no
    query string; an error is a status of 400 or more. Lines that are no log lines, and lines that
    come too late, are written to the topic weblog.dead-letters with the reason.
    """
    from penstock.cli.support.programs import load
    from penstock.demo.feed import LineFeed
    from penstock.demo.programs import example
    from penstock.files.lines import Lines

    duration_us(lateness), duration_us(window)
    lines = Lines(file, follow=follow, stop=threading.Event())
    with _Lock(directory):
        first = _first_offset(directory, file, go_on=go_on or follow)
        app = load(example("weblog")).pipeline(
            directory=str(directory), lateness=lateness, window=window
        )
        made: list[LineFeed] = []

        def feeds(address: str) -> Sequence[Feed]:
            remember = functools.partial(_remember, directory, file)
            made.append(LineFeed(_connect(directory, address), _clock_ms, lines, first, remember))
            return made

        done = not follow if until_done is None else until_done
        ended = done or how.seconds is not None
        how.host(app, None, until_done=done, print_views=ended, feeds=feeds)
        if ended:
            _summary(directory)


def _connect(directory: Path, address: str) -> Callable[[], Any]:
    """Connects to the embedded broker, which may have another address after a restart."""
    from penstock.cli.support.address import FILE, address_in
    from penstock.demo.feed import BrokerLog

    def connect() -> BrokerLog:
        return BrokerLog(address_in(directory) if (directory / FILE).exists() else address)

    return connect


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000


class _Lock:
    """Holds a demo's directory: two feeders would count every line twice."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: int | None = None

    def __enter__(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SetupError(
                f"expected {str(self._directory)!r} to be free; found a demo that runs in it. "
                "Stop it, or name another --directory"
            ) from None

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            os.close(self._file)


def _first_offset(directory: Path, file: str, *, go_on: bool) -> int:
    """Prepares the directory; the offset that the file's first line has in the topic.

    Raises:
        UserError: the directory is something else's, or another file's where it is to continue.
    """
    mark = directory / MARK
    content = orjson.loads(mark.read_bytes()) if mark.exists() else None
    others = [p for p in directory.iterdir() if p.name != LOCK]
    if content is None and others:
        raise UserError(
            f"expected {str(directory)!r} to be empty or this demo's; found {others[0].name}. "
            "Name another --directory"
        )
    if content is not None and go_on:
        here = Path(file).stat() if file != "-" else None
        if here is not None and [here.st_dev, here.st_ino] == content["inode"]:
            return int(content["first_offset"])
        if content["file"] == str(Path(file).absolute()):
            return _lines_in(directory)  # the log was rotated since: all of it is new
        raise UserError(
            f"expected to continue with {content['file']} in {str(directory)!r}; found {file}. "
            "Name another --directory, or omit --continue to start over"
        )
    for path in others:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    _remember(directory, file, (0, 0), 0)
    return 0


def _lines_in(directory: Path) -> int:
    """How many lines a stopped demo has read."""
    from penstock.serve import Views

    return _read_lines(Views(directory).status())


def _read_lines(status: VersionStatus) -> int:
    """How many lines were read: the topic has one partition, which begins at 0."""
    return sum(int(offset) for offset in status["offsets"]["requests"].values())


def _remember(directory: Path, file: str, inode: tuple[int, int], first_offset: int) -> None:
    new = directory / f"{MARK}.new"
    name = file if file == "-" else str(Path(file).absolute())
    new.write_bytes(orjson.dumps({"file": name, "inode": inode, "first_offset": first_offset}))
    new.replace(directory / MARK)


def _summary(directory: Path) -> None:
    """Prints what became of the lines: each is counted, late or bad."""
    from penstock.serve import Views

    views = Views(directory).snapshot()
    status = views.status()
    lines = _read_lines(status)
    late = int(status["counts"]["late_by_view"].get(SUMMED, 0))
    bad = sum(status["counts"]["dead"].values()) - late
    counted = sum(int(n or 0) for n in views.table(SUMMED)["requests"].to_pylist())
    click.echo(f"lines {lines:,}   counted {counted:,}   late {late:,}   bad {bad:,}")
    if late or bad:
        note(
            "Late and bad lines are in the topic weblog.dead-letters. To see them: "
            f"penstock broker --data {directory / 'log'}, and then "
            "penstock consume weblog.dead-letters --format json"
        )
