"""The site builds without a warning, and everything in it leads somewhere."""

from __future__ import annotations

import difflib
import importlib.util
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click
import pytest

import penstock as ps
from penstock.capture.metrics import FAMILIES as CAPTURE
from penstock.cli import main
from penstock.follow.metrics import FOLLOWER
from penstock.sinks.metrics import FAMILIES as SINK
from penstock.web import metrics as metrics_module

ROOT = Path(__file__).resolve().parents[1]


class Links(HTMLParser):
    """A page's ids, and where its links and pictures lead."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.targets: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif name in ("href", "src") and value and tag in ("a", "img"):
                self.targets.append(value)


def test_the_reference_is_that_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is generated of docstrings, `--help` and settings is in the checkout as it is now."""
    monkeypatch.setattr(sys, "path", [*sys.path])  # the script adds a folder
    script = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert script is not None
    assert script.loader is not None
    module = importlib.util.module_from_spec(script)
    script.loader.exec_module(module)
    changes = [
        line
        for page, text in module.outdated().items()
        for line in difflib.unified_diff(
            page.read_text().split("\n"), text.split("\n"), page.name, n=0
        )
    ]
    assert not changes, "\n".join(["write them: .venv/bin/python scripts/reference.py", *changes])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built by its own command."""
    for name in ("sphinx", "myst_parser", "furo", "sphinx_copybutton"):
        pytest.importorskip(name, reason="expected requirements-test.lock; found less")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "scripts/site.py", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    """Each page of the site."""
    return {page: Links(page) for page in site.rglob("*.html") if "_static" not in page.parts}


@pytest.mark.slow
def test_no_link_is_dead(pages: dict[Path, Links]) -> None:
    """Every link to the site's own pages, files and anchors leads somewhere."""
    dead = []
    for page, links in pages.items():
        for target in links.targets:
            url = urlsplit(target)
            if url.scheme or url.netloc:
                continue
            goal = (page.parent / unquote(url.path)).resolve() if url.path else page
            if not goal.exists() or (
                url.fragment and goal in pages and unquote(url.fragment) not in pages[goal].ids
            ):
                dead.append((page.name, target))
    assert dead == []
    assert sum(len(links.targets) for links in pages.values()) > 500


@pytest.mark.slow
def test_every_document_is_a_page(site: Path) -> None:
    """Also one that the index doesn't name; and the index leads to it."""
    index = (site / "index.html").read_text()
    for document in (ROOT / "docs").rglob("*.md"):
        page = document.relative_to(ROOT / "docs").with_suffix(".html")
        assert (site / page).exists(), page
        assert page.stem == "index" or f'href="{page}"' in index, page


@pytest.mark.slow
def test_every_public_name_is_in_the_reference(pages: dict[Path, Links]) -> None:
    """With an anchor; modules by what they contain."""
    [reference] = [links for page, links in pages.items() if page.name == "python.html"]
    for name in ps.__all__:
        assert any(one.startswith(f"penstock.{name}") for one in reference.ids), name
    assert "penstock.Stream.window" in reference.ids
    assert "penstock.App.stream" in reference.ids, "inherited"


@pytest.mark.slow
def test_every_command_is_in_the_reference(site: Path) -> None:
    """With each of its options."""
    text = re.sub(r"<[^>]+>", "", (site / "reference" / "command-line.html").read_text())
    context = click.Context(main)
    for name in main.list_commands(context):
        assert f"penstock {name}" in text
        command = main.get_command(context, name)
        assert command is not None
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert option.opts[0] in text, (name, option.opts)


def test_every_request_is_on_the_page_on_http() -> None:
    """The paths that the page's server knows are those of the table."""
    page = (ROOT / "docs" / "reference" / "http.md").read_text()
    listed = set(re.findall(r"^\| `(?:GET|POST) ([^`?]+)", page, re.MULTILINE))
    web = ROOT / "src" / "penstock" / "web"
    source = "".join((web / one).read_text() for one in ("app.py", "console/api.py"))
    routes = re.findall(r'Route\("([^"]+)"', source)
    assert listed == {one.replace(":path", "") for one in routes}


def test_every_variable_is_on_the_page_on_configuration() -> None:
    """Those that the source names, but for two that processes of Penstock set for others."""
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    source = "".join(one.read_text() for one in (ROOT / "src" / "penstock").rglob("*.py"))
    known = set(re.findall(r"\bPENSTOCK(?:_[A-Z]+)+\b", source))
    listed = set(re.findall(r"\bPENSTOCK(?:_[A-Z]+)+\b", page))
    assert listed == known - {"PENSTOCK_STANDBY", "PENSTOCK_RELOADED"}


def test_every_metric_is_on_the_page_on_metrics() -> None:
    """Those of a broker and those of a pipeline, and none that isn't there."""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    name = "((?:penstock|process)_[a-z_]+)"
    listed = {one.removesuffix("_total") for one in re.findall(f"`{name}", page)}
    source = (ROOT / "src/penstock/broker/monitoring/metrics.py").read_text()
    known = {*re.findall(f'"{name}"', source), "penstock_pipeline_state"}
    for kind, table in (
        ("pipeline", (*metrics_module.PIPELINE, metrics_module.RESTARTS, *metrics_module.TOPIC)),
        ("node", metrics_module.NODE),
        ("view", metrics_module.VIEW),
        ("sink", SINK),
        ("capture", CAPTURE),
        ("follower", FOLLOWER),
    ):
        known |= {f"penstock_{kind}_{one.name}" for one in table}
    assert listed == known
