"""The tables and plots of docs/results are made from the JSON there, and the figures in pages are rendered from it."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specgate_lab.report import ResultsFile

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "results"
Script = Callable[[str], Any]


def test_the_tables_are_those_of_the_json(script: Script) -> None:
    results = script("results")
    assert results.page(results.read_results(FOLDER)) == (FOLDER / "tables.md").read_text("utf-8")


def test_the_plots_are_those_of_the_json(script: Script, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    script("results_plots").draw_plots(script("results").read_results(FOLDER), tmp_path)
    drawn = {path.name: _texts(path) for path in tmp_path.iterdir()}
    assert drawn == {path.name: _texts(path) for path in FOLDER.glob("*.svg")}


def _texts(plot: Path) -> list[str]:
    """Return titles, labels and values: another version of matplotlib may place them elsewhere."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", plot.read_text("utf-8"))


def test_results_and_the_pages_that_quote_them_are_whole(script: Script) -> None:
    assert list(script("results_checks").problems(script("results").read_results(FOLDER))) == []


BENCH = {"bench": {"rows": [{"name": "spec", "x": 0.944, "share": 0.63}, {"name": "auto", "x": 1.337, "share": 0.5}]}}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("It has <!--=.2f bench::rows::spec::x-->0.94<!--/--> of it, with `--at 0.3` and torch 2.13.", ""),
        ("<!--=.0% bench::rows::x=1.337::share-->50%<!--/-->, <!--=.3f bench::rows::*::x::max-->1.337<!--/-->", ""),
        ("It has <!--=.2f bench::rows::spec::x-->0.96<!--/-->.", "not those of the JSON"),
        ("<!--=.2f bench::rows::name!=auto::x::max-->0.94<!--/--> of it, with a 95 % interval (Dao, 2026)", ""),
        *(
            (f"It has {typed}.", f"typed, not rendered: {typed}")
            for typed in ("0.94", "1,234", "12 of 24", "63 %", "533")
        ),
        ("<!--=.2f bench::rows::spec::y-->0.94<!--/-->", "quotes what is not there: bench::rows::spec::y"),
        ("<!--=.2f bench::rows::none::x-->0.94<!--/-->", "0 elements fit 'none'"),
        ("<!--=.2f bench::rows::*::x-->0.94<!--/-->", "2 elements fit '*'"),
        ("<!--=.2f bench::rows::spec::name-->spec<!--/-->", "quotes what is not there"),
        ("<!--=.2f bench::rows::spec::x::low-->0.94<!--/-->", "quotes what is not there"),
    ],
)
def test_a_page_has_the_figures_of_the_json_and_no_others(script: Script, text: str, told: str) -> None:
    found = list(script("results_checks").problems_of_page(text, BENCH, all_rendered=True))
    assert len(found) == bool(told)
    assert all(told in line for line in found)


@pytest.fixture
def checks(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The checks, on a repository of one commit."""
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    for command in (("init", "--quiet"), (*author, "commit", "--quiet", "--allow-empty", "-m", "first")):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    checks = script("results_checks")
    monkeypatch.setattr(checks, "ROOT", tmp_path)
    return checks


@pytest.fixture
def measured(checks: Any, tmp_path: Path) -> dict[str, Any]:
    """A file as a command writes it on our commit, read again."""
    head = ["git", "-C", str(tmp_path), "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(head, check=True, capture_output=True, text=True).stdout.strip()
    gammas = dict.fromkeys(range(1, 12), 1.5)
    ResultsFile(tmp_path / "a.json", provenance={"commit": commit}).write({"rows": [], "forward_us": gammas})
    return dict(json.loads((tmp_path / "a.json").read_text()))


def test_a_file_as_it_was_measured_is_taken(checks: Any, measured: dict[str, Any]) -> None:
    assert list(checks.problems_of_result(measured)) == []
    assert checks.serving_commits_since(measured["provenance"]["commit"]) == 0


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rows": [1]}, "its seal does not fit"),
        ({"seal": None}, "its seal does not fit"),
        ({"provenance": {"commit": "0123456789ab+"}}, "a tree with changes"),
        ({"provenance": {"commit": None}}, "without history"),
        ({"provenance": {"commit": "0123456789ab"}}, "none of this history"),
    ],
)
def test_a_file_that_was_edited_or_measured_on_a_changed_tree_is_refused(
    checks: Any, measured: dict[str, Any], changes: dict[str, Any], told: str
) -> None:
    changed = {**measured, **changes}
    assert told in " ".join(checks.problems_of_result(changed))
    # Whoever excuses one file excuses no other content.
    assert list(checks.problems_of_result(changed, checks.Excuse("0" * 16, "a reason")))


def test_a_headline_of_unknown_age_is_old(checks: Any) -> None:
    assert checks.serving_commits_since("0123456789ab") is None
    assert checks.serving_commits_since(None) is None


def test_a_headline_is_the_median_run_with_the_ratios_of_all(script: Script) -> None:
    runs = [{"run": x, "rows": [{"name": "hf"}, {"name": "auto", "ratio_to_target": x}]} for x in (1.3, 1.1, 1.2)]
    chosen = script("headlines").median_run(runs)
    assert (chosen["run"], chosen["rows"][1]["ratio_to_target_runs"]) == (1.2, [1.1, 1.2, 1.3])
