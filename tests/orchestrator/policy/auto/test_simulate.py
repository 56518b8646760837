"""Texts, cut into the rounds of a choice."""

import pytest

from orchestrator.policy.auto.history import TokenHistory
from orchestrator.policy.auto.options import PlanChoice, RoundYield, even
from orchestrator.policy.auto.simulate import Ahead, Times, rehearse

SURE, UNSURE = 6, 0


def text_of(agrees: str, buckets: list[int] | None = None, ready: list[bool | None] | None = None) -> TokenHistory:
    """A text whose draft agrees where there is an ``x``."""
    runs = [len(agrees[start:]) - len(agrees[start:].lstrip("x")) for start in range(len(agrees))]
    size = len(agrees)
    return TokenHistory(buckets or [SURE] * size, runs, ready or [None] * size, [0.5] * size)


def rehearsed(text: TokenHistory, choice: PlanChoice, ahead: Ahead | None = None) -> RoundYield:
    """Rehearse where a draft token takes 10 µs, one of a draft that was begun 1, a round 100, a hit 1000 and 100 more
    for each token that is prepared, a solo token 10 000; each draft token bends the forward's line by 7."""
    gammas = range(choice.easy + 1)
    asked_us = [100.0 + 10 * gamma for gamma in gammas]
    begun_us = [1000.0 + 100 * choice.easy + gamma for gamma in gammas]
    return rehearse(text, choice, Times(asked_us, begun_us, 10_000.0, 0.25, [7.0 * gamma for gamma in gammas]), ahead)


@pytest.mark.parametrize(("gamma", "num_rounds"), [(1, 5), (2, 4), (3, 3), (4, 3)])
def test_rounds_begin_where_those_before_them_end(gamma: int, num_rounds: int) -> None:
    # xxx. | x. | xx.
    outcome = rehearsed(text_of("xxx.x.xx."), even(gamma))
    assert outcome.tokens == pytest.approx(9 / num_rounds)
    assert outcome.rows == gamma + 1
    assert outcome.lone_us == 7 * gamma
    assert outcome.besides_us == pytest.approx(100 + 10 * gamma)
    assert outcome.waits == 0.25


def test_a_closed_gate_decodes_alone() -> None:
    buckets = [SURE, SURE, UNSURE, UNSURE]
    outcome = rehearsed(text_of("x.xx", buckets), even(1)._replace(closed=1))
    # One round of two tokens, two solo ones.
    assert outcome.tokens == pytest.approx(4 / 3)
    assert outcome.rows == pytest.approx(4 / 3)
    assert outcome.besides_us == pytest.approx((110 + 2 * 10_000) / 3)
    assert outcome.waits == pytest.approx(0.25 / 3)


def test_where_the_text_is_hard_less_is_asked_for() -> None:
    choice = PlanChoice(0, 1, 3)
    # Easy at first; hard behind the rejection; then easy again.
    outcome = rehearsed(text_of(".xxxxx"), choice)
    assert outcome.besides_us == pytest.approx((130 + 110 + 130) / 3)
    assert outcome.lone_us == pytest.approx((21 + 7 + 21) / 3)
    unsure = rehearsed(text_of("xxx", [SURE, UNSURE, UNSURE]), PlanChoice(0, 1, 2))
    assert unsure.besides_us == pytest.approx(120)


def test_what_was_begun_is_used() -> None:
    always = Ahead([1.0] * 5, [0.0] * 5)
    # All agreed: the first round is asked for, then every draft was begun.
    outcome = rehearsed(text_of("x" * 12), even(3), always)
    assert outcome.besides_us == pytest.approx((130 + 1303 + 1303) / 3)
    # Behind a rejection none was.
    outcome = rehearsed(text_of("." * 4), even(3), always)
    assert outcome.besides_us == 130


def test_what_was_seen_there_goes_before_chance() -> None:
    always = Ahead([1.0] * 5, [1.0] * 5)
    seen = text_of("....", ready=[None, False, True, None])
    outcome = rehearsed(seen, even(1), always)
    assert outcome.besides_us == pytest.approx((110 + 110 + 1101 + 1101) / 4)


def test_where_the_text_is_hard_as_much_was_prepared_as_where_it_is_easy() -> None:
    always = Ahead([1.0] * 5, [1.0] * 5)
    # Easy at first; then hard, behind rejections.
    outcome = rehearsed(text_of("..."), PlanChoice(0, 1, 3), always)
    assert outcome.besides_us == pytest.approx((130 + 1301 + 1301) / 3)
