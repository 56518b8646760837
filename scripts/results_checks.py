"""What must hold of docs/results: files are as a command wrote them, of a known commit, and pages quote them by key."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from figures import pages, quoted_files, render, typed_figures

from specgate_lab.provenance import seal_of

ROOT = Path(__file__).resolve().parent.parent
SERVING = ("drafter_svc", "verifier_svc", "orchestrator", "specgate", "protos")
"""Whose commits make a figure old."""
ALL_RENDERED = ("README.md", "docs/results/README.md", "docs/tuning.md", "docs/internals/run-ahead.md")
"""Pages on which a number with a decimal point is a result: parameters stand in code."""


class Excuse(NamedTuple):
    """What is shown although it has no seal: it was measured before there were any. Another content is not excused."""

    seal: str
    why: str = ""
    """Why its commit is no clean one of ours; empty where it is."""


EXCUSED: Mapping[str, Excuse] = {
    "cpu-forwards": Excuse("f110402801b9d685"),
    "h200-kernels": Excuse("fc6b6f2eed704a05", "the card had a copy without history: it was f4825cd"),
    "h200": Excuse("7e49b6a1cacf3d22", "the card had a copy without history: it was 7e29e4a, with 8 stages in `added`"),
}


def problems(results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield one line for everything that is wrong with the results here and the pages that quote them."""
    yield from (f"docs/results/{name}.json is excused, and not there" for name in EXCUSED.keys() - results.keys())
    for name, result in results.items():
        found = problems_of_result(result, EXCUSED.get(name))
        yield from (f"docs/results/{name}.json {problem}" for problem in found)
    for page in pages():
        name = str(page.relative_to(ROOT))
        found = problems_of_page(page.read_text("utf-8"), results, all_rendered=name in ALL_RENDERED)
        yield from (f"{name} {problem}" for problem in found)


def problems_of_page(text: str, results: Mapping[str, Any], *, all_rendered: bool) -> Iterator[str]:
    """Yield what is wrong with the figures of a page."""
    try:
        if render(text, results) != text:
            yield "has figures that are not those of the JSON: run scripts/results"
    except LookupError as error:
        yield f"quotes what is not there: {error}"
    if all_rendered and (typed := typed_figures(text)):
        yield f"has figures that are typed, not rendered: {', '.join(typed)}"


def problems_of_result(result: Mapping[str, Any], excuse: Excuse | None = None) -> Iterator[str]:
    """Yield what is wrong with a file of results."""
    commit, seal = result["provenance"]["commit"], seal_of(result)
    if not (excuse and excuse.why):
        if commit is None or commit.endswith("+"):
            yield f"was measured on a tree with changes or without history (commit {commit}): measure on a commit"
        elif is_ours(commit) is False:
            yield f"names commit {commit}, which is none of this history"
    if excuse and not seal.startswith(excuse.seal):
        yield "is another one than the one that is excused: measure again, and take it from EXCUSED"
    if not excuse and result.get("seal") != seal:
        yield "is not what its command wrote: its seal does not fit. Measure again"


def headlines(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the files that the README quotes, whose figures are of a CPU."""
    quoted = quoted_files((ROOT / "README.md").read_text("utf-8"))
    return sorted(name for name in quoted if not results[name]["provenance"]["machine"]["gpus"])


def serving_commits_since(commit: str | None) -> int | None:
    """Return how many commits after this one changed what serves; None where nobody knows."""
    if commit is None or not is_ours(commit):
        return None
    return int(_git("rev-list", "--count", "--no-merges", f"{commit}..HEAD", "--", *SERVING) or 0)


def is_ours(commit: str) -> bool | None:
    """Return whether a commit lies behind ours; None where the history is not here."""
    if _git("rev-parse", "--is-shallow-repository") != "false":
        return None
    return (_git("merge-base", commit, "HEAD") or "").startswith(commit)


def _git(*arguments: str) -> str | None:
    """Return what git prints; None where it fails or is missing."""
    if shutil.which("git") is None:
        return None
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False, timeout=30)
    return done.stdout.strip() if done.returncode == 0 else None
