"""`penstock dlq`: look at dead letters, repair them, replay them, drop them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import click
import orjson

from penstock.cli.support.address import VARIABLE, find_broker
from penstock.cli.support.moments import moment_ms
from penstock.cli.support.options import BrokerGroup, broker_option, client_settings, form_option
from penstock.cli.support.progress import counter
from penstock.cli.support.tables import note, write_rows
from penstock.core.time import instant_text
from penstock.errors import UserError

if TYPE_CHECKING:
    from penstock.client.letters.dead_letters import DeadLetters, Group, Letter, Where

Decorated = Callable[..., Any]


@dataclass(frozen=True)
class Chosen:
    """Which letters a command is about, as it was said."""

    letters: tuple[str, ...]
    reason: str | None
    origin: str | None
    partition: int | None
    since: str | None

    def where(self, *states: str) -> Where:
        """The letters in these states (in any, where none is given)."""
        from penstock.client.letters.dead_letters import Where
        from penstock.client.letters.ledger import State

        ids = frozenset(_letter_id(one) for one in self.letters)
        since_ms = None
        if self.since is not None:
            since_ms = moment_ms(self.since, time.time_ns() // 1_000_000, "--since")
        chosen = frozenset(State(one) for one in states)
        return Where(
            ids or None, self.reason, self.origin, self.partition, chosen or None, since_ms
        )

    def meant(self, *, everything: bool) -> Where:
        """The letters; none of them is changed unless it was said which are meant."""
        where = self.where()
        if not everything and where == type(where)():
            raise UserError(
                "expected which letters are meant: name them (0/17), filter them (--reason, "
                "--origin, --partition, --since), or use --all"
            )
        return where

    def open(self) -> Where:
        """Those of them that nothing was done with yet, or that were repaired."""
        return self.where("open", "repaired")


def _filters(command: Decorated) -> Decorated:
    """What says which letters are meant; the command gets it as `chosen`."""

    @wraps(command)
    def chosen(*args: Any, **given: Any) -> Any:
        from penstock.cli.loading import forget_pandas

        forget_pandas()
        names = [one.name for one in fields(Chosen)]
        return command(*args, chosen=Chosen(*(given.pop(one, ()) for one in names)), **given)

    found: Decorated = chosen
    for option in (
        click.option("--since", metavar="TIME", help="From this time on ('2 hours ago')."),
        click.option("--partition", type=click.IntRange(0), help="From this partition of it."),
        click.option("--origin", metavar="TOPIC", help="From this topic."),
        click.option(
            "--reason",
            metavar="PATTERN",
            help="Letters with a matching reason, such as '*no such field*', or a kind that `list` shows.",
        ),
    ):
        found = option(found)
    return found


_REPAIR_TIME: Final = (
    'Repair their time first, or allow late rows in the program (lateness=…, or late="correct")'
)
_letters = click.argument("letters", nargs=-1, metavar="[PARTITION/OFFSET]...")
_all = click.option("--all", "everything", is_flag=True, help="All open letters.")
_yes = click.option("--yes", is_flag=True, help="Don't ask.")


@click.group(
    cls=BrokerGroup,
    epilog="""\b
Examples:
  penstock dlq list
  penstock dlq show shop.dead-letters --reason '*user*'
  penstock dlq repair shop.dead-letters 0/17 --set user=7
  penstock dlq replay shop.dead-letters --all
  penstock dlq drop shop.dead-letters --reason 'late*' --because "counted by hand"

A letter is identified by its place in the dead-letter topic: PARTITION/OFFSET. The commands don't
change that topic; they record actions in TOPIC.ledger. A replay sends each letter once, however often
it is run or killed.
""",
)
@broker_option
@click.pass_context
def dlq(ctx: click.Context, broker: str | None) -> None:
    """List dead letters; repair, replay or drop them."""
    ctx.obj = broker


def _open(broker: str | None, topic: str) -> DeadLetters:
    from penstock.client.letters.dead_letters import DeadLetters

    return DeadLetters(find_broker(broker), topic, **client_settings())


def _letter_id(text: str) -> tuple[int, int]:
    partition, slash, offset = text.partition("/")
    if not slash or not partition.isdigit() or not offset.isdigit():
        raise UserError(f"expected a letter as PARTITION/OFFSET, such as 0/17; found {text!r}")
    return int(partition), int(offset)


@dlq.command("list")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@_filters
@form_option
@click.pass_obj
def list_letters(
    broker: str | None,
    topics: tuple[str, ...],
    *,
    chosen: Chosen,
    form: str,
) -> None:
    """Count dead letters by kind of reason, origin and state. Default: of every topic *.dead-letters.

    A kind is the reason without its times and values, which are shown as …, with one letter as
    an example.
    """
    from penstock.client import Client
    from penstock.client.letters.dead_letters import TOPIC_SUFFIX

    where = chosen.where()
    if not topics:
        with Client(find_broker(broker), **client_settings()) as client:
            topics = tuple(name for name in client.topics() if name.endswith(TOPIC_SUFFIX))
    found = []
    for topic in topics:
        with _open(broker, topic) as dead:
            found += [(topic, group) for group in dead.summary(where)]
    if form != "table":
        _write_groups(found, form)
    elif not found:
        note("There are no dead letters.")
    else:
        click.echo("\n".join(_group_text(topic, group) for topic, group in found))


def _write_groups(found: list[tuple[str, Group]], form: str) -> None:
    rows = [
        (
            *(topic, one.letters, one.state.value, one.origin),
            *(instant_text(at * 1000) for at in (one.first_ms, one.last_ms)),
            *(one.reason, f"{one.example[0]}/{one.example[1]}", one.example_reason),
        )
        for topic, one in found
    ]
    names = (
        *("topic", "letters", "state", "origin", "first", "last"),
        *("reason", "example", "example_reason"),
    )
    write_rows(names, rows, form)


def _group_text(topic: str, group: Group) -> str:
    """A kind of letters, for people: reasons are sentences, too long for a table."""
    times = [instant_text(at * 1000) for at in (group.first_ms, group.last_ms)]
    span = times[0] if times[0] == times[1] else " to ".join(times)
    letters = f"{group.letters:,} letter{'' if group.letters == 1 else 's'}"
    lines = [
        f"{topic}  {letters}  {group.state.value}  from {group.origin or '?'}  {span}",
        f"  reason: {group.reason}",
        f"  such as {group.example[0]}/{group.example[1]}",
    ]
    if group.example_reason != group.reason:
        lines[-1] += f": {group.example_reason}"
    return _printable(lines)


@dlq.command("show")
@click.argument("topic")
@_letters
@_filters
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(["open", "repaired", "replayed", "dropped"]),
    help="Letters in this state.",
)
@click.option("--max", "-n", "most", type=click.IntRange(1), default=20, show_default=True)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
@click.pass_obj
def show(
    broker: str | None,
    topic: str,
    *,
    chosen: Chosen,
    states: tuple[str, ...],
    most: int,
    form: str,
) -> None:
    """Print dead letters with their values; of repaired ones, the new value."""
    with _open(broker, topic) as dead:
        for index, letter in enumerate(dead.letters(chosen.where(*states))):
            if index == most:
                note(f"There are more; --max {10 * most} shows them.")
                return
            click.echo(_json(letter) if form == "json" else _text(letter))


def _text(letter: Letter) -> str:
    place = f"{letter.id[0]}/{letter.id[1]}"
    origin = f"{letter.origin or '?'}/{letter.origin_partition} offset {letter.origin_offset}"
    if not letter.was_record:
        origin = f"{letter.origin or '?'}, shard {letter.origin_partition}: a row, no record"
    at = instant_text(letter.timestamp_ms * 1000)
    lines = [
        f"{place}  {letter.state.value}  from {origin}, {at}",
        f"  reason: {letter.reason}",
    ]
    if letter.node:
        lines.append(f"  node: {letter.node}")
    if letter.note:
        lines.append(f"  because: {letter.note}")
    lines += [f"  key: {_shown(letter.key)}", f"  value: {_shown(letter.value)}"]
    return _printable(lines)


def _printable(lines: list[str]) -> str:
    return "\n".join("".join(c if c.isprintable() else "�" for c in line) for line in lines)


def _shown(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")


def _json(letter: Letter) -> str:
    row = {
        "letter": f"{letter.id[0]}/{letter.id[1]}",
        "state": letter.state.value,
        "reason": letter.reason,
        "origin": letter.origin,
        "origin_partition": letter.origin_partition,
        "origin_offset": letter.origin_offset,
        "was_record": letter.was_record,
        "node": letter.node,
        "timestamp": instant_text(letter.timestamp_ms * 1000),
        "key": _shown(letter.key),
        "value": _shown(letter.value),
        "headers": {name: _shown(value) for name, value in letter.headers},
        "because": letter.note,
    }
    return orjson.dumps(row).decode()


@dlq.command("repair")
@click.argument("topic")
@_letters
@_filters
@click.option(
    "--set", "sets", multiple=True, metavar="FIELD=VALUE", help="A field of a JSON object; a.b."
)
@click.option("--unset", multiple=True, metavar="FIELD", help="Remove a field.")
@click.option("--replace", nargs=2, multiple=True, metavar="OLD NEW", help="Replace text.")
@click.option("--value", metavar="TEXT", help="The whole new value.")
@click.option("--edit", is_flag=True, help="Open each value in $EDITOR.")
@click.option("--replay", "then_replay", is_flag=True, help="Replay what was repaired at once.")
@click.pass_obj
def repair(
    broker: str | None,
    topic: str,
    *,
    chosen: Chosen,
    sets: tuple[str, ...],
    unset: tuple[str, ...],
    replace: tuple[tuple[str, str], ...],
    value: str | None,
    edit: bool,
    then_replay: bool,
) -> None:
    """Give dead letters new values. Old values are kept until the letters are replayed."""
    from penstock.client.letters.dead_letters import Where
    from penstock.client.letters.repairing import parse_assignment, repaired_value

    chosen.meant(everything=False)
    assignments = [parse_assignment(one) for one in sets]
    if not (assignments or unset or replace or edit or value is not None):
        raise UserError("expected --set, --unset, --replace, --value or --edit; found none")
    repaired = []
    with _open(broker, topic) as dead:
        for letter in list(dead.letters(chosen.open())):
            new = letter.value if value is None else value.encode()
            new = repaired_value(new, assignments=assignments, removed=unset, replacements=replace)
            if edit:
                new = _edited(new)
            if new != letter.value and dead.repair({letter.id: new}):
                repaired.append(letter.id)
        note(f"repaired {len(repaired)} letter{'' if len(repaired) == 1 else 's'} of {topic}")
        if then_replay and repaired:
            _say_late(broker, dead, Where(ids=frozenset(repaired)))
            note(f"replayed {dead.replay(Where(ids=frozenset(repaired)))}")


def _edited(value: bytes | None) -> bytes | None:
    text = click.edit((value or b"").decode("utf-8", "replace"))
    return value if text is None else text.rstrip("\n").encode()


@dlq.command("replay")
@click.argument("topic")
@_letters
@_filters
@_all
@click.option("--to-topic", metavar="TOPIC", help="Default: where each letter came from.")
@click.option("--dry-run", is_flag=True, help="Only show how many would be sent.")
@click.pass_obj
def replay(
    broker: str | None,
    topic: str,
    *,
    chosen: Chosen,
    to_topic: str | None,
    everything: bool,
    dry_run: bool,
) -> None:
    """Send dead letters to the topics that they came from, repaired ones with their new value; each once.

    If it is killed, run it again: it continues where it stopped. Keys, timestamps and the senders'
    own headers are kept; the header penstock.replayed names the letter.
    """
    where = chosen.meant(everything=everything)
    with _open(broker, topic) as dead, counter("replayed") as tick:
        if to_topic is None:
            _say_late(broker, dead, chosen.open())
        if dry_run:
            _say_what_is_sent(dead, chosen.open(), to_topic)
            return
        sent = dead.replay(where, to_topic, tick)
    note(f"replayed {sent} letter{'' if sent == 1 else 's'} of {topic}")


def _say_what_is_sent(dead: DeadLetters, where: Where, to_topic: str | None) -> None:
    """Says how many of these letters a replay would send, and how many it would leave."""
    count = rows = 0
    for one in dead.letters(where):
        count += dead.is_sent(one, to_topic)
        rows += to_topic is None and not one.was_record
    note(f"{count} letters would be sent; {len(dead.ledger().unfinished)} replays finished")
    if rows:
        note(f"{rows} letters of rows that were no records would stay: no topic has them")


def _say_late(broker: str | None, dead: DeadLetters, where: Where) -> None:
    """Says how many of these letters would be late; another topic may have another watermark.

    A letter with any reason may lie behind the watermark by now.
    """
    from penstock.client.letters.dead_letters import TOPIC_SUFFIX
    from penstock.client.letters.lateness import late_again
    from penstock.web.console.watermarks import Watermarks

    known = Watermarks(find_broker(broker), broker or os.environ.get(VARIABLE))
    again, behind, others = [], [], set()
    for one in dead.letters(where):
        if not one.was_record:  # a row that an operator made isn't sent
            continue
        if late_again(one.reason, one.value):
            again.append(one.id)
            continue
        others.add(one.origin)
        if any(m.is_after(one.value, one.timestamp_ms) for m in known.marks(one.origin)):
            behind.append(one.id)
    if again:
        note(
            f"{_these(again)} will be late again: their event time is before the watermark. {_REPAIR_TIME}"
        )
    if behind:
        note(
            f"{_these(behind)} have an event time before the watermark of their topic, and will be late "
            f"letters where their windows are closed. {_REPAIR_TIME}"
        )
    if dead.topic.endswith(TOPIC_SUFFIX):
        for topic in sorted(filter(None, others)):
            if (why := known.unknown(topic)) is not None:
                note(f"how many letters of {topic} are before its watermark isn't known: {why}")


def _these(letters: list[tuple[int, int]]) -> str:
    return f"{len(letters)} of these letters, such as {letters[0][0]}/{letters[0][1]},"


@dlq.command("drop")
@click.argument("topic")
@_letters
@_filters
@_all
@click.option("--because", default="", metavar="TEXT", help="Reason; `dlq show` displays it.")
@_yes
@click.pass_obj
def drop(
    broker: str | None,
    topic: str,
    *,
    chosen: Chosen,
    because: str,
    everything: bool,
    yes: bool,
) -> None:
    """Mark dead letters as done without replaying them. The records stay in the topic."""
    where = chosen.meant(everything=everything)
    with _open(broker, topic) as dead:
        if not yes:
            count = sum(one.letters for one in dead.summary(chosen.open()))
            click.confirm(f"Drop {count} letters of {topic}?", abort=True, err=True)
        dropped = dead.drop(where, because)
    note(f"dropped {dropped} letter{'' if dropped == 1 else 's'} of {topic}")
