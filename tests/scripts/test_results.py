"""The tables and plots of docs/results are made from the JSON there, and the prose quotes numbers of the tables."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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


def test_the_prose_quotes_numbers_of_the_tables() -> None:
    """Small whole numbers count things; the others are results. Names such as 1.7B are no numbers."""
    number = r"(?<![\w.-])(\d+\.\d+|\d{3,})(?![\w-])"
    quoted = re.findall(number, (FOLDER / "README.md").read_text("utf-8"))
    tables = set(re.findall(r"\d+\.\d+|\d+", (FOLDER / "tables.md").read_text("utf-8")))
    assert len(quoted) > 50
    assert [one for one in quoted if one not in tables] == []


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
