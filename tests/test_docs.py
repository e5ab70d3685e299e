"""What the README shows works."""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
import types
from pathlib import Path
from typing import Any

import click
import pytest
from _pytest.mark import ParameterSet

import penstock as ps
from penstock import flow
from penstock.app.databases import TARGET_OPTIONS
from penstock.cli import main
from penstock.ops.registry import load_operators
from penstock.sql.flow import CAPTURE_OPTIONS, SINK_OPTIONS, STREAM_OPTIONS, TABLE_OPTIONS

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_the_readme_programs_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The README's pipeline is one, and its test passes."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    pipeline, test = blocks
    shop = types.ModuleType("shop")
    exec(compile(pipeline, "README pipeline", "exec"), shop.__dict__)
    monkeypatch.setitem(sys.modules, "shop", shop)
    space: dict[str, object] = {}
    exec(compile(test, "README test", "exec"), space)
    space["test_clicks_per_minute"]()  # type: ignore[operator]


PAGES = (
    "tutorial",
    "deploying",
    "operations",
    "dead-letters",
    "damage",
    "page",
    "queries",
    "upgrading",
    "security",
    "capture",
    "capture-databases",
    "reference/capture",
    "sinks",
    "sink-targets",
    "examples",
    "registry",
)
COMMANDS, OTHERS = (
    re.findall(r"^ {4}(?:.*\| )?penstock (\S.*)$", text, re.MULTILINE)
    for text in (
        README,
        "\n".join((ROOT / "docs" / f"{page}.md").read_text() for page in PAGES),
    )
)


@pytest.mark.parametrize("line", COMMANDS + OTHERS)
def test_the_readme_commands_are_commands(line: str) -> None:
    """Each is one that there is, with the options and arguments that it takes; none is run here."""
    words = shlex.split(re.split(r"\s{3,}|\s+#", line)[0])
    command: click.Command = main
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        context = click.Context(command)
        _, found, words = command.resolve_command(context, words)
        assert found is not None, words
        command = found
    assert not isinstance(command, click.Group) or command.invoke_without_command
    command.make_context(line, words)


def test_every_example_is_on_its_page() -> None:
    """Each program and folder of `examples/`, and none that isn't there."""
    page = (ROOT / "docs" / "examples.md").read_text()
    listed = set(re.findall(r"^\| `([\w.]+)/?` \|", page, re.MULTILINE))
    there = {one.name for one in (ROOT / "examples").iterdir() if one.suffix in ("", ".py", ".sql")}
    assert listed == there - {"__pycache__"}


def test_the_readme_replays_into_a_topic_that_it_makes() -> None:
    """The example is for a topic that isn't there yet."""
    [replay] = [line for line in COMMANDS if line.startswith("replay")]
    assert "--create" in replay


def test_the_readme_figures_were_measured() -> None:
    """Each figure of its table is one of the page on performance, to the digit."""
    _, _, rest = README.partition("\n## Figures\n")
    rows = re.findall(r"^\| (?!question|-)(.*) \|$", rest.partition("\n## ")[0], re.MULTILINE)
    performance = (ROOT / "docs" / "performance.md").read_text()
    assert len(rows) >= 5
    for row in rows:
        _, ours, theirs, _ = row.split(" | ")
        for figure in (ours, theirs.partition(": ")[2]):
            assert figure in performance, figure


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/**/*.md")))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link in the documents points to a file."""
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


TRANSLATED = {
    "beside": "next to",
    "for ever": "without limit",
    "go(es|ing)? on": "continue",
    "mend(s|ed|ing)?": "repair",
    "says? of": "report about",
    "seldom": "rarely",
    "tell(s|ing)?|told": "report, show, distinguish",
    "thereby": "so",
    "what is there": "the existing …",
    "whoever": "a process that …, a user who …",
}
"""Words that make a text read as translated, and the field's."""
NO_PROSE = re.compile(
    r"```.*?```|`[^`\n]*`|\]\([^)]*\)|^ {4}[^\n]*$|<!--.*?-->", re.DOTALL | re.MULTILINE
)


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/**/*.md")))
def test_documents_use_the_fields_words(page: Path) -> None:
    """In prose; code and targets of links may have any."""
    prose = NO_PROSE.sub("", page.read_text())
    for words, better in TRANSLATED.items():
        found = re.search(rf"\b({words})\b", prose, re.IGNORECASE)
        assert found is None, f"expected {better}; found {found[0]!r}"


@pytest.mark.slow
def test_messages_use_the_fields_words() -> None:
    """Errors, logs, help and the page: every text of the source that isn't a docstring or SQL."""
    found = []
    words = re.compile(rf"\b({'|'.join(TRANSLATED)})\b", re.IGNORECASE)
    for path in sorted((ROOT / "src").rglob("*.py")):
        tree = ast.parse(path.read_text())
        comments = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
                is_prose = id(node) not in comments and " " in text and "told" not in text.split()
                if is_prose and words.search(text):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {text}")
    assert found == []


TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()


def test_the_tutorial_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each program replaces the one before, an addition extends it, and each test passes on what is there."""
    monkeypatch.chdir(tmp_path)
    programs = tests = 0
    program, end = "", "\nif __name__ =="
    for code in re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL):
        if "def test_" not in code:
            is_program = "ps.App(" in code
            program = code if is_program else program.replace(end, f"\n{code}{end}")
            shop = types.ModuleType("shop")
            monkeypatch.setitem(sys.modules, "shop", shop)
            exec(compile(program, "docs/tutorial.md", "exec"), shop.__dict__)
            programs += is_program
            continue
        space: dict[str, object] = {"__name__": "example"}
        exec(compile(code, "docs/tutorial.md", "exec"), space)
        for name, test in space.items():
            if name.startswith("test_"):
                test()  # type: ignore[operator]
                tests += 1
    assert (programs, tests) == (2, 3)


def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Cell by cell, as in Jupyter; where a cell ends with a view, the view is a table."""
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((ROOT / "docs" / "notebook.ipynb").read_text())
    space: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for cell in notebook["cells"]:
        assert not cell.get("outputs"), "it is kept without outputs"
        if cell["cell_type"] == "code":
            *first, last = ast.parse("".join(cell["source"])).body
            exec(compile(ast.Module(first, []), "docs/notebook.ipynb", "exec"), space)
            if isinstance(last, ast.Expr):
                shown.append(eval(compile(ast.Expression(last.value), "notebook", "eval"), space))
            else:
                exec(compile(ast.Module([last], []), "docs/notebook.ipynb", "exec"), space)
    first_view, letter, per_user = shown
    assert "<table" in first_view._repr_html_()
    assert [row["clicks"] for row in first_view.rows()] == [2, 1]
    assert b"eve" in letter.value
    counts = {row["user"]: row["clicks"] for row in per_user.rows()}
    assert (counts["ann"], counts["bob"]) == (2, 2)


def test_the_guide_to_deploying_has_a_program() -> None:
    """Its pipeline on a broker of its own is one."""
    [code] = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "deploying.md").read_text(), re.DOTALL
    )
    space: dict[str, object] = {"__name__": "example"}
    exec(compile(code, "docs/deploying.md", "exec"), space)
    [view] = space["app"].graph().views  # type: ignore[attr-defined]
    assert view.name == "per_minute"


GUIDES = (
    *("pipelines", "formats", "time", "windows", "joins", "searches", "registry", "testing"),
    "upgrading",
)


def examples(guide: str) -> list[ParameterSet]:
    """Its Python blocks, each named after the heading above it."""
    page = (ROOT / "docs" / f"{guide}.md").read_text()
    return [
        pytest.param(code, id=re.findall(r"^#+ (.*)$", page[: page.index(code)], re.MULTILINE)[-1])
        for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    ]


EXAMPLES = [example for guide in GUIDES for example in examples(guide)]


def test_every_page_of_the_guide_is_run() -> None:
    """Each page has examples, and none were lost when pages were split."""
    assert all(examples(guide) for guide in GUIDES)
    assert len(EXAMPLES) >= 30


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("code", EXAMPLES)
def test_the_guides_examples_run(
    code: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each is a program of its own, and what it asserts holds."""
    monkeypatch.chdir(tmp_path)
    assert "assert " in code
    exec(compile(code, "docs/guide.md", "exec"), {"__name__": "example"})


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_the_page_on_spark_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its examples, in order, over the view and the topic that they speak of."""
    import os

    import numpy as np
    import pyarrow as pa
    from tests.serve.committing import clicks, commit

    from penstock.broker import BrokerProcess
    from penstock.client import Client, Producer
    from penstock.engine.spark.session import start_session

    monkeypatch.chdir(tmp_path)
    commit(clicks(50), tmp_path / "shop.penstock")
    page = (ROOT / "docs" / "spark.md").read_text()
    environment = dict(os.environ)
    with BrokerProcess(tmp_path / "log") as broker:
        with Client(broker.address) as client, Producer(broker.address) as producer:
            for topic in ("clicks", "numbers", "slow"):
                client.create_topic(topic, 1, {"retention.ms": "-1"})
            values = pa.array([b'{"user": "u%d", "ms": 1.5}' % (n % 3) for n in range(9)])
            producer.send("clicks", 0, None, values, np.zeros(9, np.int64))
        session = start_session("page", None, tmp_path / "spark", cores=2)
        try:
            space: dict[str, object] = {"spark": session, "__name__": "example"}
            for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
                code = code.replace("127.0.0.1:9092", broker.address)
                # Relative paths are the JVM's, which may have begun elsewhere.
                code = code.replace('"checkpoints/', f'"{tmp_path}/checkpoints/')
                exec(compile(code, "docs/spark.md", "exec"), space)
            with Client(broker.address) as client:
                assert client.offsets("numbers")[0] > 100  # and the marker of the transaction
                assert client.offsets("slow")[0] == 10
        finally:
            session.stop()
            os.environ.clear()
            os.environ.update(environment)


SQL_PAGE = (ROOT / "docs" / "sql.md").read_text()


def test_the_page_on_sql_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its Python, and its program with the examples of each section."""
    monkeypatch.chdir(tmp_path)
    [code] = re.findall(r"```python\n(.*?)```", SQL_PAGE, re.DOTALL)
    exec(compile(code, "docs/sql.md", "exec"), {"__name__": "example"})
    program = "".join(re.findall(r"```sql\n(.*?)```", SQL_PAGE, re.DOTALL))
    shop = ps.App("shop", directory=tmp_path / "shop.penstock")
    shop.sql(program)
    graph = shop.graph()
    assert [view.name for view in graph.views] == [
        "per_name",
        "per_minute",
        "corrected",
        "paid_per_name",
        "carts",
        "newest",
        "last_hour",
        "per_page",
        "skus",
        "settings",
    ]
    assert [output.topic for output in graph.outputs] == ["per-minute", "shop.per_name"]


def test_every_option_of_sql_is_in_the_reference() -> None:
    """Those of WITH, in its two tables of options: each that there is, and no other."""
    page = (ROOT / "docs" / "reference" / "sql.md").read_text()
    rows = []
    for heading in ("### Options in WITH", "## Options of streams"):
        table = page.partition(f"\n{heading}\n")[2].partition("\n#")[0]
        rows += re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`([a-z_]+)(?: = [^`]*)?`", row)}
    known = {*STREAM_OPTIONS, *TABLE_OPTIONS, *CAPTURE_OPTIONS, *SINK_OPTIONS, *TARGET_OPTIONS}
    assert listed == known


OPERATORS_PAGE = (ROOT / "docs" / "operators.md").read_text()


def test_every_operator_has_a_row() -> None:
    """The last column names each kind of the registry, as plans do."""
    table = OPERATORS_PAGE.partition("\n## ")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")]
    named = {kind for row in rows for kind in row[-1].removesuffix(" |").split(", ")}
    missing = load_operators().keys() - named
    assert not missing, f"expected in docs/operators.md rows that end in {sorted(missing)}"


def test_every_public_name_of_the_flow_is_on_the_page() -> None:
    """Methods of streams and tables, aggregates, windows, times and formats."""
    methods = {
        name
        for one in (ps.Stream, ps.Table)
        for name in vars(one) | vars(one.__mro__[1])
        if not name.startswith("_") and callable(getattr(one, name))
    }
    functions = {name for name in flow.__all__ if name[0].islower()}
    plumbing = {"add_output", "node"}
    missing = {
        name
        for name in (methods | functions) - plumbing
        if not re.search(rf"[`.]{name}(`|\()", OPERATORS_PAGE)
    }
    assert not missing, f"expected {sorted(missing)} in docs/operators.md"
