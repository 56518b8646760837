"""Calibration, by hand; and ``orchestrator calibrate`` once, on small models."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from specgate.errors import InvalidArgument
from specgate_lab.gates.calibrate import CalibrateOptions, calibrate
from specgate_lab.gates.calibration import (
    Bin,
    Calibration,
    Cell,
    JudgedToken,
    PairCalibration,
    area_under_curve,
    equal_bins,
    grid,
    judged_tokens,
)
from specgate_lab.replay.trace import TracedText
from tests.support.models import TOKENIZER_SIZE, Mix, write_llama

TEXT = TracedText(
    (0.9, 0.8, 0.7, 0.6, 0.5, 0.4), (True, True, False, True, True, None), (0.1, 0.2, 0.3, 0.4, 0.5, None)
)


@pytest.mark.parametrize(
    ("gamma", "judged"),
    [
        # The third token is a bonus, and was not judged.
        (2, [(1, 0.2, 0.9, True), (0, 0.4, 0.7, True), (1, 0.5, 0.6, True)]),
        (3, [(1, 0.2, 0.9, True), (2, 0.3, 0.8, False), (0, 0.4, 0.7, True), (1, 0.5, 0.6, True)]),
    ],
)
def test_rounds_judge_up_to_the_first_rejection(gamma: int, judged: list[tuple[int, float, float, bool]]) -> None:
    assert list(judged_tokens(TEXT, gamma)) == [JudgedToken(*one) for one in judged]


def test_what_was_not_recorded_is_not_judged() -> None:
    bare = TracedText(TEXT.confidences, TEXT.agrees, (None,) * len(TEXT))
    assert not list(judged_tokens(bare, 3))


def test_bins_have_equal_counts_by_rising_confidence() -> None:
    bins = equal_bins([(number / 32, number % 4 == 3) for number in reversed(range(32))])
    assert [one.tokens for one in bins] == [3, 3, 3, 3, 4, 3, 3, 3, 3, 4]
    assert bins[0] == Bin(1 / 32, 0.0, 3)
    assert [one.confidence for one in bins] == sorted(one.confidence for one in bins)
    assert len(equal_bins([(0.5, True)] * 3)) == 3


def test_the_error_is_the_mean_distance_of_confidence_and_acceptance() -> None:
    four = [(0.25, False), (0.25, False), (0.75, True), (0.75, False)]
    assert Calibration.of(four).error == pytest.approx((0.25 + 0.25 + 0.25 + 0.75) / 4)
    # Ten bins of four: in each of them three of four, and it says so.
    assert Calibration.of([(0.75, number % 4 > 0) for number in range(40)]).error == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("accepted", "rejected", "area"),
    [
        ((0.8, 0.9), (0.1, 0.2), 1.0),
        ((0.1,), (0.8, 0.9), 0.0),
        ((0.5, 0.5), (0.5,), 0.5),
        ((0.8, 0.3), (0.2, 0.5), 0.75),
        ((0.8,), (0.2, 0.2, 0.8), 2.5 / 3),
        ((0.8,), (), None),
        ((), (0.8,), None),
    ],
)
def test_the_area_counts_pairs(accepted: tuple[float, ...], rejected: tuple[float, ...], area: float | None) -> None:
    outcomes = [(one, True) for one in accepted] + [(one, False) for one in rejected]
    assert area_under_curve(outcomes) == (None if area is None else pytest.approx(area))


def test_the_grid_has_a_cell_for_both_confidences() -> None:
    tokens = [JudgedToken(0, 0.95, 0.3, True), JudgedToken(1, 0.9, 0.4, False), JudgedToken(0, 0.1, 1.0, True)]
    cells = grid(tokens)
    assert (cells[1][4], cells[4][0]) == (Cell(0.5, 2), Cell(1.0, 1))
    assert sum(cell.tokens for row in cells for cell in row) == 3
    assert cells[0][0] == Cell(None, 0)


def test_places_are_told_apart() -> None:
    tokens = list(judged_tokens(TEXT, 3))
    found = PairCalibration.of(0.0, tokens)
    assert {place: (one.tokens, one.accepted) for place, one in found.places.items()} == {
        0: (1, 1.0), 1: (2, 1.0), 2: (1, 0.0),
    }  # fmt: skip
    assert (found.all.tokens, found.all.accepted) == (4, 0.75)
    assert (found.all.draft.area, found.all.target.area) == pytest.approx((2 / 3, 1 / 3))


@pytest.mark.parametrize(("values", "problem"), [({"temperatures": ""}, "temperatures"), ({"max_tokens": 1}, "max_to")])
def test_what_is_wrong_is_named(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        CalibrateOptions(**values)


def test_a_pair_is_calibrated(tmp_path: Path) -> None:
    write_llama(tmp_path / "target", TOKENIZER_SIZE, seed=1, tokenizer=True)
    write_llama(tmp_path / "draft", TOKENIZER_SIZE, seed=2, mix=Mix(1, 0.97), tokenizer=True)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "def main():"}\n{"prompt": "import os"}\n')
    app = typer.Typer()
    app.command()(calibrate)
    models = ["--target", str(tmp_path / "target"), "--draft", str(tmp_path / "draft")]
    flags = ["--prompts", str(prompts), "--max-tokens", "24", "--out", str(tmp_path / "out")]
    told = CliRunner().invoke(app, [*models, *flags], catch_exceptions=False).output
    kept = json.loads((tmp_path / "out" / "calibration.json").read_text())
    assert [one["temperature"] for one in kept["temperatures"]] == [0, 1]
    for one in kept["temperatures"]:
        assert 0 < one["all"]["accepted"] <= 1
        assert sum(place["tokens"] for place in one["places"].values()) == one["all"]["tokens"] > 20
        assert f"{one['all']['draft']['error']:.3f}" in told
    pytest.importorskip("matplotlib")
    assert (tmp_path / "out" / "calibration.png").read_bytes()[:4] == b"\x89PNG"
