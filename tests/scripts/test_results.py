"""The tables and plots of docs/results are made from the JSON there, and the prose quotes numbers of the tables."""

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
