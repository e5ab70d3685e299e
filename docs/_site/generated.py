"""Parts of pages that are made from the program itself.

What is between `<!-- python NAME … -->` and `<!-- end -->` is the documentation of public names, behind
`<!-- fields CLASS … -->` the fields of dataclasses, behind `<!-- targets TABLE -->` a table of the targets of
sinks, behind `<!-- commands -->` the command line, and behind
`<!-- topic settings -->` a table of them.
`scripts/reference.py` writes them into the pages. The site has the public names as directives of Sphinx
instead, and in the index, for `<!-- other pages -->`, the pages that no other list has.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from sphinx.application import Sphinx

__all__ = ["setup", "written"]

PLUMBING: Final = {
    "add_output", "node", "take", "App.databases", "App.depends_on_sizes", "App.ordered", "App.targets",
    "Client.describe_producers", "Client.end_offsets_many", "Client.ends_past", "Client.init_producer_id",
    "Client.producer_states", "Client.wait_for_data", "Producer.interrupt", "Producer.send_together",
    "Run.begin", "Security.context", "Security.secret", "Sink.beside", "Sink.figures", "Snapshot.answer",
    "Snapshot.every_us", "Snapshot.files", "Snapshot.kept_by", "Snapshot.named", "Snapshot.no_view",
    "Snapshot.part", "Snapshot.row_key", "TransactionalProducer.interrupt", "TransactionalProducer.resume",
    "TransactionalProducer.send_together", "Views.answer", "Views.arrivals", "Views.every_us", "Views.read",
}  # fmt: skip
"""Public for other packages of Penstock, not for programs: members, of any class or of one."""
MADE_ELSEWHERE: Final = {"Record", "Run", "Snapshot", "Stream", "Table", "View"}
"""Classes that programs get from calls and don't construct."""
SECTIONS: Final = {
    "Args": "Arguments",
    "Attributes": "Attributes",
    "Raises": "Errors",
    "Returns": "Returns",
    "Yields": "Yields",
}
SECTION: Final = re.compile(rf"^({'|'.join(SECTIONS)}):\s*(.*)$")
PART: Final = re.compile(
    r"^(?P<begin><!-- (?P<what>(python|fields|targets) [^>]+|commands|topic settings) -->)$.*?^<!-- end -->$",
    re.MULTILINE | re.DOTALL,
)
KINDS: Final = {
    1: "boolean", 2: "text", 3: "integer", 5: "integer", 6: "number", 7: "list",
}  # fmt: skip


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers with Sphinx."""
    app.connect("source-read", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def written(text: str) -> str:
    """A page of the checkout with its generated parts as they are now."""

    def made(found: re.Match[str]) -> str:
        content = re.sub(r"\n{3,}", "\n\n", _made(found["what"], plain)).strip("\n")
        return f"{found['begin']}\n\n{content}\n\n<!-- end -->"

    return PART.sub(made, text)


def _made(what: str, name: Callable[[str], str]) -> str:
    """A generated part.

    Args:
        what: its comment.
        name: writes the documentation of a public name.
    """
    if what == "commands":
        return commands()
    if what == "topic settings":
        return topic_settings()
    kind, *names = what.split()
    if kind == "targets":
        return targets(names[0])
    return "\n".join(map(fields if kind == "fields" else name, names))


def fill(app: Sphinx, _page: str, source: list[str]) -> None:
    """Makes the parts of a page for the site."""
    text = PART.sub(lambda found: _made(found["what"], python), source[0])
    mark = "<!-- other pages -->"
    if mark in text:
        text = text.replace(mark, "\n".join(other_pages(Path(app.srcdir), text)))
    source[0] = text


def other_pages(folder: Path, index: str) -> list[str]:
    """The pages that an index doesn't list: whoever adds one finds it on the site."""
    listed = set(re.findall(r"^([\w/-]+)$", index, re.MULTILINE)) | {"index"}
    return sorted({one.stem for one in folder.glob("*.md")} - listed)


def python(name: str) -> str:
    """A public name of the package, as MyST's directives of Python's domain."""
    module, _, attribute = f"penstock.{name}".rpartition(".")
    one = getattr(importlib.import_module(module), attribute)
    return "\n".join(_describe(f"penstock.{name}", one))


def plain(name: str) -> str:
    """A public name of the package, as Markdown that reads well as it is."""
    module, _, attribute = f"penstock.{name}".rpartition(".")
    one = getattr(importlib.import_module(module), attribute)
    return "\n".join(_plain(name, one))


def _plain(name: str, one: Any) -> Iterator[str]:
    is_class = inspect.isclass(one)
    is_made = is_class and (issubclass(one, BaseException) or one.__name__ in MADE_ELSEWHERE)
    yield f"### {name}\n"
    if not is_made:
        yield f"```\nps.{name}{_signature(one)}\n```\n"
    yield from (*_markdown(one), "")
    for member, what in _members(one) if is_class else ():
        yield f"#### {name}.{member}\n"
        getter = what.fget if isinstance(what, property) else None
        if getter is None:
            yield f"```\n{member}{_signature(what, bound=True)}\n```\n"
        yield from (*_markdown(getter or what), "")


def _describe(name: str, one: Any) -> Iterator[str]:
    if not inspect.isclass(one):
        yield from _fenced("function", name + _signature(one), _markdown(one), 4)
        return
    is_error = issubclass(one, BaseException)
    body = [*_markdown(one), ""]
    for member, what in _members(one):
        if isinstance(what, property):
            body += _fenced("property", member, _markdown(what.fget), 4)
        else:
            body += _fenced("method", member + _signature(what, bound=True), _markdown(what), 4)
    signature = "" if is_error or one.__name__ in MADE_ELSEWHERE else _signature(one)
    yield from _fenced("exception" if is_error else "class", name + signature, body, 5)


def _members(one: type) -> list[tuple[str, Any]]:
    """Public methods and properties with a docstring, the inherited ones of the package too."""
    homes = [base for base in one.__mro__ if base.__module__.startswith("penstock")]
    members: dict[str, Any] = {}
    for base in reversed(homes):
        for name, what in vars(base).items():
            what = getattr(what, "__func__", what)  # noqa: PLW2901
            if name.startswith("_") or {name, f"{one.__name__}.{name}"} & PLUMBING:
                continue
            if not (inspect.isfunction(what) or isinstance(what, property)):
                continue
            if inspect.getdoc(what.fget if isinstance(what, property) else what):
                members[name] = what
    return sorted(members.items())


def _fenced(kind: str, title: str, body: list[str], ticks: int) -> Iterator[str]:
    yield f"{'`' * ticks}{{py:{kind}}} {title}"
    yield ""
    yield from body
    yield "`" * ticks
    yield ""


def _signature(one: Any, *, bound: bool = False) -> str:
    """The names of the arguments and their defaults; types are in the text."""
    found = inspect.signature(one)
    arguments = list(found.parameters.values())[bound:]
    plain = [
        each.replace(
            annotation=inspect.Parameter.empty,
            default=each.default if _is_plain(each.default) else _Elided(),
        )
        for each in arguments
    ]
    return str(found.replace(parameters=plain, return_annotation=inspect.Signature.empty))


class _Elided:
    """A default that has no short text: shown as `...`, as in stubs."""

    def __repr__(self) -> str:
        return "..."


def _is_plain(value: object) -> bool:
    return value is inspect.Parameter.empty or isinstance(value, str | int | float | tuple | None)


def _markdown(one: Any) -> list[str]:
    """A docstring in Google's form, as Markdown."""
    lines = (inspect.getdoc(one) or "").splitlines()
    out: list[str] = []
    section = ""
    for line in lines:
        found = SECTION.match(line)
        if found:
            section = found[1]
            out += ["", f"**{SECTIONS[section]}.** {found[2]}".rstrip(), ""]
        elif section and line.startswith("    ") and not line.startswith("     "):
            item = re.match(r"^    (\*{0,2}[\w.]+): (.*)$", line)
            out.append(f"- `{item[1]}`: {item[2]}" if item else line.strip())
        elif section and line.startswith("     "):
            out.append("  " + line.strip())
        else:
            if line.strip():
                section = ""
            out.append(line)
    return out


def commands() -> str:
    """Every command of the command line: usage, help, options, examples."""
    from penstock.cli import main

    return "\n".join(_command(main, "penstock", None))


def _command(one: click.Command, name: str, parent: click.Context | None) -> Iterator[str]:
    context = click.Context(one, parent=parent, info_name=name.rsplit(maxsplit=1)[-1])
    yield f"{'##' if name.count(' ') < 2 else '###'} {name}\n"
    usage = " ".join(one.collect_usage_pieces(context))
    yield f"```\n{name} {usage}\n```\n"
    yield _paragraphs(one.help or one.short_help or "")
    # Click keeps the help option that a command was first asked for, under whatever names.
    options = [
        ("-h, --help", found[1]) if "--help" in each.opts else found
        for each in one.get_params(context)
        if (found := each.get_help_record(context))
    ]
    if options:
        yield "\n| option | meaning |\n|---|---|"
        for flags, meaning in options:
            yield f"| `{_cell(flags)}` | {_cell(meaning)} |"
    yield "\n" + _paragraphs(one.epilog or "") + "\n"
    if isinstance(one, click.Group):
        for each in one.list_commands(context):
            found = one.get_command(context, each)
            if found is not None and not found.hidden:
                yield from _command(found, f"{name} {each}", context)


def _paragraphs(text: str) -> str:
    """Click's text: paragraphs behind a backspace keep their lines."""
    parts = []
    for part in inspect.cleandoc(text).split("\n\n"):
        head, kept, rest = part.partition("\b\n")
        if not kept:
            parts.append(_escape(part))
            continue
        title, _, lines = rest.partition("\n")
        if not rest.startswith(("Example", "Examples")):
            title, lines = "", rest
        parts.append(f"{_escape(head + title)}\n\n```console\n{inspect.cleandoc(lines)}\n```")
    return "\n\n".join(parts)


def _escape(text: str) -> str:
    return re.sub(r"([*_<>\[\]])", r"\\\1", text)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def fields(name: str) -> str:
    """A dataclass of the package: what each field is."""
    module, _, attribute = f"penstock.{name}".rpartition(".")
    one = getattr(importlib.import_module(module), attribute)
    about = inspect.getdoc(one) or ""
    rows = [f"### {attribute}\n", _escape(about.split("\n\n")[0]), "", "| field | type | meaning |"]
    rows.append("|---|---|---|")
    meanings = _meanings(about)
    for each in dataclasses.fields(one):
        kind = re.sub(r"(Mapping|Sequence)\b", lambda found: found[1].lower(), str(each.type))
        rows.append(f"| `{each.name}` | `{_cell(kind)}` | {_cell(meanings[each.name])} |")
    return "\n".join([*rows, ""])


TARGET_TABLES: Final[dict[str, tuple[str, ...]]] = {
    "guarantees": ("target", "function", "exactly once"),
    "transactions": ("target", "exactly once", "an older process"),
    "loading": ("target", "loading", "other processes"),
    "unchanged": ("target", "a value that is left out"),
    "rebuilds": ("target", "new table", "how it replaces the live one", "old table"),
    "addresses": ("target", "address", "table", "options", "extra"),
}


def targets(table: str) -> str:
    """A table of the targets of sinks, as they describe themselves; those that agree share a line."""
    from penstock.sinks import TARGETS, TargetKind

    def cells(one: TargetKind) -> tuple[str, ...]:
        facts = one.facts
        match table:
            case "guarantees":
                return f"`ps.sinks.{one.name}({one.arguments})`", facts.guarantee
            case "transactions":
                return facts.exactly_once, facts.older_process
            case "loading":
                return facts.loading, facts.others
            case "unchanged":
                return (facts.left_out,)
            case "rebuilds":
                return facts.rebuilt.new, facts.rebuilt.replaced, facts.rebuilt.old
            case _:
                shown = ", ".join(f"`{each}`" for each in one.examples)
                options = "; ".join(f"`{each}`: {each.help}" for each in one.options)
                extra = f"`{one.extra}`" if one.extra else ""
                return shown, one.table, options.replace("|", "\\|"), extra

    lines: dict[tuple[str, ...], list[str]] = {}
    for one in sorted(TARGETS.own(), key=lambda one: one.title.lower()):
        lines.setdefault(cells(one), []).append(one.title)
    head = TARGET_TABLES[table]
    rows = [" | ".join((", ".join(titles), *found)) for found, titles in lines.items()]
    return "\n".join(
        f"| {row} |" for row in (" | ".join(head), " | ".join(["---"] * len(head)), *rows)
    )


def _meanings(about: str) -> dict[str, str]:
    """By name, what the section `Attributes` of a docstring says."""
    _, _, section = about.partition("Attributes:\n")
    found = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", section, re.MULTILINE)
    return dict(found)


def topic_settings() -> str:
    """The settings of topics, as the broker describes them to clients."""
    from penstock.broker.storage.topic_settings import TOPIC_SETTINGS

    rows = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    for name, one in sorted(TOPIC_SETTINGS.items()):
        default = f"`{one.default}`" if one.default else ""
        meaning = one.doc + (" Accepted, without effect." if one.is_moot else "")
        rows.append(f"| `{name}` | {KINDS[one.kind]} | {default} | {_cell(meaning)} |")
    return "\n".join(rows)
