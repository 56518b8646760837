"""What must hold of docs/results: files are as a command wrote them, of a known commit, and pages quote them by key."""

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from figures import pages, quoted_files, render, typed_figures

from specgate_lab.provenance import seal_of

ROOT = Path(__file__).resolve().parent.parent
SERVING = ("drafter_svc", "verifier_svc", "orchestrator", "specgate", "protos")
"""Whose commits make a figure old."""
ALL_RENDERED = ("README.md", "docs/results/README.md", "docs/tuning.md", "docs/internals/run-ahead.md")
"""Pages on which a number with a decimal point is a result: parameters stand in code."""
UNSEALED = "measured before results had seals"
EXCUSED: Mapping[str, str] = {
    "h200": "the card's machine had a copy without history: 7e29e4a, with 8 stages in `added`",
    "h200-kernels": "the card's machine had a copy without history: f4825cd",
    **dict.fromkeys(
        (
            "bundled-greedy", "bundled-load", "bundled-temperature-1", "chaos", "clients", "cpu-forwards", "fuzz",
            "gates-replayed", "smollm2-135m-24-layers", "smollm2-135m-distilled", "soak", "sources-bundled",
            "sources-smollm2-135m", "tune-bundled", "tune-random",
            "tune-smollm2",
        ),
        UNSEALED,
    ),
}  # fmt: skip
"""Results whose commit or seal is missing, and why they are shown all the same."""


def problems(results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield one line for everything that is wrong with the results here and the pages that quote them."""
    for name, result in results.items():
        if name not in EXCUSED:
            yield from (f"docs/results/{name}.json {problem}" for problem in problems_of_result(result))
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


def problems_of_result(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a file of results."""
    commit = result["provenance"]["commit"]
    if commit is None or commit.endswith("+"):
        yield f"was measured on a tree with changes or without history (commit {commit}): measure on a commit"
    elif not is_ours(commit):
        yield f"names commit {commit}, which is none of this history"
    if result.get("seal") != seal_of(result):
        yield "is not what its command wrote: its seal does not fit. Measure again"


def headlines(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the files that the README quotes, whose figures are of a CPU."""
    quoted = quoted_files((ROOT / "README.md").read_text("utf-8"))
    return sorted(name for name in quoted if not results[name]["provenance"]["machine"]["gpus"])


def serving_commits_since(commit: str) -> int:
    """Return how many commits after this one changed what serves."""
    return int(_git("rev-list", "--count", f"{commit.rstrip('+')}..HEAD", "--", *SERVING) or 0)


def is_ours(commit: str) -> bool:
    """Return whether a commit lies behind ours; a checkout without history cannot tell, and says yes."""
    if _git("rev-parse", "--is-shallow-repository") != "false":
        return True
    return _git("merge-base", commit, "HEAD").startswith(commit)


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False, timeout=30)
    return done.stdout.strip()
