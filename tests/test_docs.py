"""Documents cannot drift: what exists is documented, what is linked exists, what is told of the code is true of it."""

import argparse
import ast
import importlib
import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from cli import COMMANDS
from collectors.settings import parse_settings
from pages import _tour_parts as tour
from pages.figures.terms import TERMS
from scoring import cost
from scoring.alarm import PoolRisk
from scoring.model import PoolRates

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
APP = ast.parse((ROOT / "app.py").read_text())
PAGES = next(
    [word for word, _ in ast.literal_eval(node.value)]
    for node in APP.body
    if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "PAGES"
)


def _prose(path: Path) -> str:
    """Return a document without its blocks of code."""
    return re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    """A link to a file of the repository finds it; one to a heading finds the heading."""
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(document)):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        assert path.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.M)
            slugs = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
            assert anchor in slugs, target


@pytest.mark.parametrize("word", PAGES)
def test_every_page_has_its_document_and_is_linked_from_the_start(word: str) -> None:
    """docs/pages/<word>.md, or docs/<word>.md where the subject has one; a new user finds it."""
    paths = [path for path in (DOCS / "pages" / f"{word}.md", DOCS / f"{word}.md") if path.exists()]
    assert paths, word
    start = (DOCS / "start.md").read_text()
    chinese = (ROOT / "README.zh.md").read_text()
    for text in (start, chinese):
        assert any(f"{path.relative_to(DOCS)})" in text for path in paths), word


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_the_start(name: str) -> None:
    """A command that exists is named where a new user looks."""
    assert f"| `{name}` |" in (DOCS / "start.md").read_text()


def test_every_number_is_defined_with_its_source() -> None:
    """Each word of the vocabulary, each rate, each term of the cost and each risk stands in docs/numbers.md."""
    text = (DOCS / "numbers.md").read_text()
    words = [*TERMS, *(each.name for each in fields(PoolRates)), *cost.TERMS]
    words += [each.name for each in fields(PoolRisk) if each.name.endswith(("_probability", "high_water_s"))]
    # The window is what the rates are over: the heading names its setting.
    missing = [word for word in words if f"`{word}`" not in text and word != "window_s"]
    assert not missing
    assert "view.rate_window_s" in text


@pytest.mark.parametrize("document", ["README.md", "README.zh.md", "docs/connect.md", "docs/start.md"])
def test_every_fleet_file_of_the_guides_loads(document: str, tmp_path: Path, monkeypatch) -> None:
    """What is shown to be copied is accepted as it stands (files and variables it names exist for the test)."""
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / document).read_text(), flags=re.S)
    for name in re.findall(r'"([A-Z_]*TOKEN[A-Z_]*)"', "\n".join(blocks)):
        monkeypatch.setenv(name, "a-token")
    for block in blocks:
        tomllib.loads(block)
        # A certificate of the reader's own cannot be here.
        parse_settings(re.sub(r"(?m)^ca_file.*$", "", block), folder=tmp_path, name="fleet.toml")
    assert blocks or document == "docs/start.md"


def _shell_lines(document: Path) -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", document.read_text(encoding="utf-8"), flags=re.S)
    return [line.split("#")[0].strip() for block in blocks for line in block.splitlines() if line.split("#")[0].strip()]


@pytest.mark.parametrize("document", ["README.md", "README.zh.md", "docs/start.md", "docs/connect.md"])
def test_every_command_line_of_the_guides_parses(document: str) -> None:
    """Make targets exist, and options are options of their command."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    for line in _shell_lines(ROOT / document):
        words = re.findall(r'"[^"]*"|\S+', line)
        if words[0] == "make":
            assert {word for word in words[1:] if "=" not in word and word.isalpha()} <= targets, line
        elif words[0].endswith("kvscope"):
            parser = argparse.ArgumentParser(exit_on_error=False)
            importlib.import_module(f"commands.{words[1]}").configure(parser)
            parser.parse_args([word.strip('"') for word in words[2:]])


def test_the_tour_is_told_as_it_is() -> None:
    """Steps, scenarios and pages of docs/pages/tour.md are those of the tour, in their order."""
    rows = re.findall(
        r"^\| (\d) [^|]*\| `([a-z-]+)` \|.*\| ([\w-]+) \|$", (DOCS / "pages" / "tour.md").read_text(), re.M
    )
    told = [(int(number), scenario) for number, scenario, _ in rows]
    assert told == [(place + 1, step.scenario) for place, step in enumerate(tour.STEPS)]
    pages = {page.lower().replace("-", "_") for _, _, page in rows}
    assert pages == {step.page for step in tour.STEPS}


def test_the_changelog_begins_with_what_is_unreleased() -> None:
    """Newest first, one sentence a line, each ended by a full stop."""
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (.+)$", text, flags=re.M)[0] == "Unreleased"
    for line in re.findall(r"^- .*(?:\n  .*)*", text, flags=re.M):
        assert line.rstrip().endswith("."), line


def test_the_documents_speak_of_the_project_alone() -> None:
    """No path of anybody's machine."""
    for document in DOCUMENTS:
        assert not re.search(r"/(work|home|root|Users)/\w", document.read_text(encoding="utf-8")), document
