"""What choices kept of what they promised."""

import pytest

from orchestrator.policy.auto.calibration import (
    MIN_VERDICTS,
    MIN_VERDICTS_A_SESSION,
    Calibration,
    ChoiceCounts,
    WaitKind,
)
from orchestrator.policy.auto.options import PlanChoice, even

ALONE = even(1)._replace(closed=7)


def found_out(choice: PlanChoice, share: float, times: int = 20, calibration: Calibration | None = None) -> Calibration:
    """Return what is known once ``choice`` has kept ``share`` of a token per microsecond."""
    calibration, tally = calibration or Calibration(), ChoiceCounts()
    tally.add(300, round(300 / share))
    for _ in range(times):
        calibration.mark_stable(choice, 1.0, tally)
    return calibration


def test_kinds() -> None:
    assert WaitKind.of(even(3)) is WaitKind.STEADY
    assert WaitKind.of(even(3)._replace(closed=2)) is WaitKind.GATED
    assert WaitKind.of(ALONE) is WaitKind.ALONE
    assert WaitKind.of(PlanChoice(0, 1, 3)) is WaitKind.STEADY


def test_nobody_is_doubted_before_anything_is_known() -> None:
    assert Calibration().kept(even(3)) == Calibration().kept(ALONE) == 1.0


@pytest.mark.parametrize("other", [even(3), even(1), even(8), even(3)._replace(closed=2)])
@pytest.mark.parametrize("times", [1, 20])
def test_nothing_that_was_never_tried_is_believed_more_than_drafts_that_were(other: PlanChoice, times: int) -> None:
    calibration = found_out(even(3), 0.75, times)
    assert calibration.kept(other) == calibration.kept(even(3)) == pytest.approx(0.75, abs=0.06)
    assert calibration.kept(ALONE) == 1.0


def test_in_a_crowd_each_kind_is_tried() -> None:
    assert found_out(even(3), 0.75).kept(even(3)._replace(closed=2), crowded=True) == 1.0


def test_what_was_found_out_is_forgotten() -> None:
    calibration = found_out(even(3), 0.5)
    assert found_out(even(3), 1.0, times=60, calibration=calibration).kept(even(3)) > 0.9


def test_a_few_verdicts_say_nothing() -> None:
    tally = ChoiceCounts()
    for _ in range(MIN_VERDICTS - 1):
        tally.add(1, 1000)
    assert not tally.is_enough(1)
    tally.add(1, 1000)
    assert tally.is_enough(1)


def test_of_many_sessions_more_verdicts_say_as_much() -> None:
    tally = ChoiceCounts()
    for _ in range(8 * MIN_VERDICTS_A_SESSION - 1):
        tally.add(1, 1000)
    assert not tally.is_enough(8)
    tally.add(1, 1000)
    assert tally.is_enough(8)


def test_what_has_nothing_to_do_with_a_choice_counts_only_so_far() -> None:
    assert found_out(even(3), 0.01).kept(even(3)) > 0.45
    assert found_out(even(3), 100.0).kept(even(3)) < 1.55


def test_doubt_goes_as_a_kind_is_found_out_and_comes_back_as_others_are() -> None:
    calibration = Calibration()
    assert calibration.doubt(WaitKind.ALONE) == calibration.doubt(WaitKind.STEADY) == 1.0
    once = found_out(ALONE, 0.9, times=1).doubt(WaitKind.ALONE)
    assert found_out(ALONE, 0.9, times=20).doubt(WaitKind.ALONE) < once < 0.5
    assert once < found_out(even(3), 0.9, times=5, calibration=found_out(ALONE, 0.9, times=1)).doubt(WaitKind.ALONE) < 1
