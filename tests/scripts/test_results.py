"""The tables and plots of docs/results are made from the JSON there, and the figures in pages are rendered from it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specgate_lab.provenance import sealed

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
        ("It has 0.94.", "typed, not rendered: 0.94"),
        ("<!--=.2f bench::rows::spec::y-->0.94<!--/-->", "quotes what is not there: bench::rows::spec::y"),
        ("<!--=.2f bench::rows::none::x-->0.94<!--/-->", "0 elements fit 'none'"),
        ("<!--=.2f bench::rows::*::x-->0.94<!--/-->", "2 elements fit '*'"),
        ("<!--=.2f bench::rows::spec::name-->spec<!--/-->", "quotes what is not there"),
    ],
)
def test_a_page_has_the_figures_of_the_json_and_no_others(script: Script, text: str, told: str) -> None:
    found = list(script("results_checks").problems_of_page(text, BENCH, all_rendered=True))
    assert len(found) == bool(told)
    assert all(told in line for line in found)


def test_a_file_that_was_edited_or_measured_on_a_changed_tree_is_refused(script: Script) -> None:
    whole = sealed({"provenance": {"commit": "0" * 12}, **BENCH["bench"]})
    checks = script("results_checks")
    of = {
        "edited": {**whole, "rows": []},
        "never sealed": {key: value for key, value in whole.items() if key != "seal"},
        "changed": sealed({**whole, "provenance": {"commit": f"{'0' * 12}+"}}),
        "no history": sealed({**whole, "provenance": {"commit": None}}),
    }
    told = {name: " ".join(checks.problems_of_result(result)) for name, result in of.items()}
    assert "its seal does not fit" in told["edited"]
    assert "its seal does not fit" in told["never sealed"]
    assert "a tree with changes" in told["changed"]
    assert "its seal" not in told["changed"]
    assert "without history" in told["no history"]
