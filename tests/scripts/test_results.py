"""The tables and plots of docs/results are made from the JSON there, and the figures in pages are rendered from it."""

import json
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


def test_a_file_of_each_kind_is_shown_with_its_origin(script: Script, tmp_path: Path) -> None:
    machine = {"cores": 2, "cpu": "a CPU", "gpus": ["a card, 580"]}
    versions = {"torch": "2.13", "transformers": "5.23"}
    origin = {"date": "2026-11-25T01:02:03", "command": "x", "commit": None, "machine": machine, "versions": versions}
    row = {"name": "spec", "tokens_per_s": 123.4, "ratio_to_target_95": [1.25, 2.0], "acceptance_rate": 0.5}
    step = {"name": "smoke", "status": "FAIL", "seconds": 5.5, "told": "sdpa | no pages", "rows": [{"GB/s": 3000.0}]}
    load = {"concurrency": 8, "ttft_ms": {"p50": 1.0, "p90": 2.0, "p99": 3.0}, "tokens_per_s": 9.0}
    files: dict[str, dict[str, Any]] = {
        "a": {"rows": [row]},
        "b": {"note": "abc123", "steps": [step]},
        "c": {"rows": [load]},
        "d": {"prompt_sets": {"code": {"rows": [row], "agreement": {"equal": 3, "total": 4}}}},
    }
    for name, result in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"provenance": origin, **result}))
    results = script("results")
    lines = results.page(results.read_results(tmp_path)).splitlines()
    for line in (
        "## One request at a time",
        "### [a](a.json)",
        "2026-11-25, commit unknown, 2 cores of a CPU, a card, 580, torch 2.13, transformers 5.23.",
        "| spec | 123 | 1.25 to 2.00 | 50% |",
        "2026-11-25, commit abc123, 2 cores of a CPU, a card, 580, torch 2.13, transformers 5.23.",
        "| smoke | FAIL | 5.50 | sdpa \\| no pages |",
        "#### smoke",
        "| 3000 |",
        "| 8 | 9.00 | 1.0 / 3.0 |",
        "Prompts of the set `code`:",
        "- All rows of the target wrote the same text for 3 of 4 prompts.",
    ):
        assert line in lines
