"""Links of the pages lead to what exists, and so do the pages that code and comments name."""

import re
from pathlib import Path

import pytest

from tests.support.pages import PAGES, ROOT, anchors, links

SOURCES = (
    "orchestrator",
    "specgate_lab",
    "specgate",
    "specgate_vllm",
    "drafter_svc",
    "verifier_svc",
    "tests",
    "scripts",
    "deploy",
    "clients",
    "examples",
)
SUFFIXES = frozenset(
    {"", ".py", ".md", ".yaml", ".yml", ".sh", ".proto", ".toml", ".mjs", ".js", ".cc", ".html", ".json"}
)
NAMED = re.compile(r"(?<![\w./-])docs/[\w./-]*\w")


def problem_of(page: Path, link: str) -> str | None:
    """Return what is wrong with a link of a page, None for one that is right or leads to another host."""
    if re.match(r"[a-z]+:", link):
        return None
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    if not target.exists():
        return f"{link}: there is no such file"
    if not target.is_relative_to(ROOT):
        return f"{link}: leaves the repository"
    if anchor and target.suffix == ".md" and anchor not in anchors(target.read_text("utf-8")):
        return f"{link}: the page has no such anchor"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    problems = [problem_of(page, link) for link in links(page.read_text("utf-8"))]
    assert [problem for problem in problems if problem] == []


def test_pages_that_code_names_exist() -> None:
    files = [*ROOT.glob("*.*"), ROOT / "Makefile", *(path for folder in SOURCES for path in (ROOT / folder).rglob("*"))]
    missing = [
        f"{path.relative_to(ROOT)}: {named}"
        for path in files
        if path.is_file() and path.suffix in SUFFIXES and "node_modules" not in path.parts
        for named in NAMED.findall(path.read_text("utf-8", "replace"))
        if "NAME" not in named and not (ROOT / named).exists()
    ]
    assert missing == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = ROOT / "docs" / "quickstart.md"
    text = "# The first `run`\n[a](no.md) [b](#second) [c](#the-first-run) ![d](../README.md) `[e](no)` [f](https://x.y/)\n"
    assert links(text) == ["no.md", "#second", "#the-first-run", "../README.md", "https://x.y/"]
    assert anchors(text + "## The first `run`\n") == {"the-first-run", "the-first-run-1"}
    assert [bool(problem_of(page, link)) for link in ("no.md", "../README.md#no", "../README.md")] == [
        True,
        True,
        False,
    ]
