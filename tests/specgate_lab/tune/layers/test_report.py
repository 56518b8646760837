"""The words of a search: what was found, its gain, and the flags to type."""

from dataclasses import replace
from pathlib import Path

import pytest

from specgate.types import ForwardCost
from specgate_lab.statistics import Interval
from specgate_lab.tune.layers.blocks import Blocks, BlockSet
from specgate_lab.tune.layers.predict import Judged, MeasuredTimes, Prediction
from specgate_lab.tune.layers.report import Finalist, SearchReport
from specgate_lab.tune.versus_target import Gain

TIMES = MeasuredTimes((ForwardCost(1, 1000),), 1000.0, 0.0, 50.0, 50.0, 1.0, 0.0)


def gain(ratio: float) -> Gain:
    return Gain("some", 100 * ratio, ratio, Interval(ratio - 0.01, ratio + 0.1), 0.9)


def report(fixed: Gain, auto: Gain) -> SearchReport:
    judged = Judged(BlockSet(frozenset({3, 4}), frozenset({1})), Prediction(6, 1.8, 0.94))
    finalists, random = [Finalist(judged, fixed, auto)], Finalist(judged, gain(0.6), gain(0.9))
    subject = {"model": "aa", "device": "cpu", "dtype": "float32", "context_tokens": 99, "temperatures": [0.0]}
    return SearchReport(
        subject, Blocks(12, True), TIMES, {}, [judged], [judged], finalists, random, [], Path("out/skip.json")
    )


@pytest.mark.parametrize(("fixed", "auto", "flags"), [(1.5, 1.2, "--gate none --gamma 6"), (1.2, 1.5, "--gate auto")])
def test_a_set_that_pays_comes_with_the_flags_that_were_run(fixed: float, auto: float, flags: str) -> None:
    words = report(gain(fixed), gain(auto)).words()
    assert words[0].startswith(f"Draft with the target's own layers: {max(fixed, auto):.2f} × the target alone")
    assert words[0].endswith(f"with --method layer-skip --skip out/skip.json {flags}.")
    assert "leaves out 3 of 24 blocks: attention 3, 4, MLP 1." in words[1]
    assert "Predicted, with γ 6: 1.80 × the target alone." in words[2]
    assert words[3].endswith(f"The set found is {fixed - 0.6:.2f} × the target alone faster.")


@pytest.mark.parametrize("auto", [gain(0.99), replace(gain(1.5), acceptance=None)], ids=["slower", "drafted nothing"])
def test_a_set_that_does_not_pay_is_advised_against(auto: Gain) -> None:
    found = report(gain(0.5), auto)
    assert not found.pays
    assert found.words()[0].startswith("Do not draft with the target's own layers")
    assert found.words()[3].endswith("The set found is 0.10 × the target alone slower.")


def test_faults_and_doubts_are_told() -> None:
    found = replace(report(gain(1.5), gain(1.2)), texts_differ=["auto"], times=replace(TIMES, misfit=0.3))
    assert found.words()[-2] == "Texts were not the target's with: auto. That is a fault; report it."
    assert "errors of up to 30%" in found.words()[-1]
