"""The words of a search: what was found, what it brings, what to type."""

from dataclasses import replace
from pathlib import Path

from specgate.types import ForwardCost
from specgate_lab.statistics import Interval
from specgate_lab.tune.layers.blocks import Blocks, BlockSet
from specgate_lab.tune.layers.predict import MeasuredTimes, Prediction
from specgate_lab.tune.layers.report import Finalist, SearchReport
from specgate_lab.tune.layers.search import RandomSets
from specgate_lab.tune.layers.study import Judged
from specgate_lab.tune.versus_target import Gain

SET = Judged(BlockSet(frozenset({3, 4}), frozenset({1})), Prediction(6, 1.8, 0.94), Prediction(2, 1.1, 0.94))
TIMES = MeasuredTimes((ForwardCost(1, 1000),), 1000.0, 0.0, 50.0, 50.0, 1.0, 0.0)


def gain(ratio: float, low: float | None = None) -> Gain:
    return Gain("some", 100 * ratio, ratio, Interval(low or ratio - 0.01, ratio + 0.1), 0.9)


def report(fixed: Gain, auto: Gain, *, run_ahead: bool = True) -> SearchReport:
    random = Finalist(SET, gain(0.6), gain(0.9))
    subject = {"model": "aa", "device": "cpu", "dtype": "float32", "context_tokens": 99, "temperatures": [0.0]}
    finalists = [Finalist(SET, fixed, auto)]
    sets = RandomSets((SET,))
    return SearchReport(
        subject, Blocks(12, True), TIMES, {}, [SET], sets, finalists, random, [], run_ahead, Path("out/skip.json")
    )


def test_a_set_that_pays_comes_with_the_flags_that_were_run() -> None:
    words = report(gain(1.5), gain(1.2)).words()
    flags = "--method layer-skip --skip out/skip.json --gate none --gamma 6"
    assert words[0].startswith("Draft with the target's own layers: 1.50 × the target alone")
    assert words[0].endswith(f"with {flags}.")
    assert "leaves out 3 of 24 blocks: attention 3, 4, MLP 1." in words[1]
    assert "1.80 × the target alone with run-ahead, 1.10 without" in words[2]
    assert words[3].endswith("The set found is 0.90 × the target alone faster.")
    assert "--gamma 2" in report(gain(1.5), gain(1.2), run_ahead=False).words()[0]
    assert "--gate auto" in report(gain(1.2), gain(1.5)).words()[0]


def test_a_set_that_does_not_pay_is_advised_against() -> None:
    told = report(gain(0.5), gain(0.99))
    assert not told.pays
    assert told.words()[0].startswith("Do not draft with the target's own layers")
    assert told.words()[3].endswith("The set found is 0.10 × the target alone slower.")


def test_what_drafted_nothing_is_no_merit_of_the_set() -> None:
    idle = replace(gain(1.5), acceptance=None)
    assert not report(gain(0.9), idle).pays


def test_faults_and_doubts_are_told() -> None:
    told = replace(report(gain(1.5), gain(1.2)), texts_differ=["auto"], times=replace(TIMES, misfit=0.3))
    assert "That is a fault; report it." in told.words()[-2]
    assert "errors of up to 30%" in told.words()[-1]
