"""The best choice on given texts, at given prices."""

import random
from collections.abc import Iterator

import pytest

from orchestrator.policy.auto.agreement import NUM_BUCKETS
from orchestrator.policy.auto.calibration import Calibration, ChoiceCounts
from orchestrator.policy.auto.choice import FIRST_GAMMA, WORTH_DRAFTING, WORTH_GATED, Chooser, Table
from orchestrator.policy.auto.cooperative_steps import at_once
from orchestrator.policy.auto.forwards import PRICED_FROM, ForwardPrices
from orchestrator.policy.auto.history import TokenHistory
from orchestrator.policy.auto.options import PlanChoice, even
from orchestrator.policy.auto.prices import Prices
from orchestrator.policy.auto.simulate import Ahead

FORWARDS = ForwardPrices(8000, (240,) * len(PRICED_FROM), 240)
CHEAP = Prices(FORWARDS, 0, 0, 400, 0, 720, sessions=1, groups=1.0, alone_us=0)
DEAR = CHEAP._replace(token_us=2640)
NUM_TOKENS = 1500


def text_of(*odds: float, num_tokens: int = NUM_TOKENS) -> TokenHistory:
    """A text whose draft agrees with these odds in the buckets of confidence, each of which lasts for a while."""
    dice = random.Random(7)
    buckets = [(place // 24) % len(odds) for place in range(num_tokens)]
    agrees = [dice.random() < odds[bucket] for bucket in buckets]
    run, runs = 0, list[int]()
    for one in reversed(agrees):
        run = run + 1 if one else 0
        runs.append(run)
    return TokenHistory(buckets, runs[::-1], [None] * num_tokens, [dice.random() for _ in agrees])


def best_of(chooser: Chooser, last: PlanChoice | None) -> Table:
    """Return what one search finds."""
    found: list[Table] = []

    def steps() -> Iterator[None]:
        found.append((yield from chooser.search(last)))

    at_once(steps())
    return found[0]


def settled(chooser: Chooser, last: PlanChoice | None = None) -> Table:
    """Return where one search after the other comes to rest."""
    table = best_of(chooser, last)
    for _ in range(20):
        table, before = best_of(chooser, table.choice), table
        if table.choice == before.choice:
            break
    return table


@pytest.mark.parametrize("prices", [CHEAP, DEAR])
@pytest.mark.parametrize("odds", [(0.2, 0.9), (0.1, 0.3), (0.6, 0.8), (0.95, 0.95)])
def test_no_even_choice_nor_threshold_is_much_faster(prices: Prices, odds: tuple[float, ...]) -> None:
    chooser = Chooser(text_of(*odds), prices, 8)
    best = settled(chooser)
    others = [even(gamma)._replace(closed=closed) for gamma in range(1, 9) for closed in (0, 1, 7)]
    assert best.rate >= 0.97 * max(chooser.load(choice).rate for choice in others)


def test_it_begins_near_what_is_known() -> None:
    assert best_of(Chooser(text_of(1.0), CHEAP, 8), None).choice.easy <= FIRST_GAMMA + 2
    assert settled(Chooser(text_of(1.0), CHEAP, 8)).choice == even(8)


def test_a_dear_draft_goes_less_far() -> None:
    cheap, dear = (settled(Chooser(text_of(0.85), prices, 8)).choice for prices in (CHEAP, DEAR))
    assert 0 < dear.easy < cheap.easy


@pytest.mark.parametrize("sessions", [1, 8])
def test_a_draft_that_never_survives_is_not_asked(sessions: int) -> None:
    table = settled(Chooser(text_of(0.02), CHEAP._replace(sessions=sessions, groups=sessions), 8))
    assert not table.choice.drafts
    assert table.choice.easy > 0
    assert table.probe_loss_us > 0


@pytest.mark.parametrize("gamma", [1, 8])
def test_from_the_target_alone_it_comes_back_to_any_gamma(gamma: int) -> None:
    chooser = Chooser(text_of(0.7), CHEAP, 8)
    assert best_of(chooser, even(gamma)._replace(closed=7)).choice == settled(chooser).choice


def test_unsure_places_are_left_to_the_target_where_drafts_are_dear() -> None:
    choice = settled(Chooser(text_of(0.05, 0.9), DEAR, 8)).choice
    assert choice.closed == 1
    assert choice.easy > 1


def test_where_a_draft_was_rejected_less_is_asked_for() -> None:
    # Stretches where nothing is agreed on, and others where everything is; the confidence is the same.
    text = text_of(0.0, 1.0)._replace(buckets=[6] * NUM_TOKENS)
    _, hard, easy = settled(Chooser(text, CHEAP, 8)).choice
    assert hard < easy


def test_rows_cost_everybody_who_shares_the_forward() -> None:
    heavy = CHEAP._replace(forwards=FORWARDS._replace(row_us=1000))
    assert settled(Chooser(text_of(0.6), heavy, 8)).choice.drafts
    assert not settled(Chooser(text_of(0.6), heavy._replace(sessions=16, groups=16), 8)).choice.drafts


def test_the_target_alone_is_tried_where_it_may_be_faster() -> None:
    chooser = Chooser(text_of(0.9), CHEAP._replace(sessions=8, groups=8), 8)
    in_use, alone = even(3), even(3)._replace(closed=7)
    ratio = chooser.load(in_use).rate / chooser.load(alone).rate
    tried = chooser.trial(in_use, reach=1.05 * ratio)
    assert tried is not None
    assert tried.choice == alone
    assert chooser.trial(in_use, reach=0.95 * ratio) is None


@pytest.mark.parametrize("odds", [(0.05, 0.95), (0.05, 0.95, 0.95, 0.95)])
def test_what_drafts_lose_in_closed_places_is_what_probes_there_are_booked_with(odds: tuple[float, ...]) -> None:
    text = text_of(*odds)
    chooser = Chooser(text, DEAR, 8)
    table = settled(chooser)
    opened = table.choice._replace(closed=0)
    assert table.choice.drafts
    num_closed = sum(bucket < table.choice.closed for bucket in text.buckets)
    lost_us = NUM_TOKENS * (1 / chooser.load(opened).rate - 1 / table.rate)
    assert table.probe_loss_us == pytest.approx(lost_us / num_closed, rel=0.1)


def test_probes_of_the_target_alone_are_of_what_would_be_drafted_if_anything_were() -> None:
    table = settled(Chooser(text_of(0.1), DEAR, 8), PlanChoice(7, 3, 8))
    assert not table.choice.drafts
    assert table.choice.hard == table.choice.easy == 1


def test_the_target_alone_is_priced_without_a_drafter_beside_it() -> None:
    busy = CHEAP._replace(solo_us=1500, alone_us=1500)
    drafting, alone = PlanChoice(2, 2, 2), PlanChoice(7, 2, 2)
    slow, quiet = (Chooser(text_of(0.05, 0.1, 0.9), prices, 8) for prices in (busy, busy._replace(alone_us=300)))
    assert quiet.load(drafting) == slow.load(drafting)
    assert quiet.load(alone).cycle_us == pytest.approx(8300)
    crowd = Chooser(text_of(0.1), busy._replace(alone_us=300, sessions=4, groups=4.0), 8)
    assert crowd.load(alone) == Chooser(text_of(0.1), busy._replace(sessions=4, groups=4.0), 8).load(alone)


def test_a_probe_behind_the_target_alone_is_booked_with_what_is_believed_and_with_what_is_to_be_read() -> None:
    calibration, prices = Calibration(), DEAR._replace(catch_up_us=2500)
    chooser, drafting = Chooser(text_of(0.1), prices, 8, calibration=calibration), even(1)
    before = settled(chooser, PlanChoice(7, 1, 1))
    assert (before.choice.drafts, before.catch_up_us) == (False, 2500)
    rate, tally = chooser.load(drafting).rate, ChoiceCounts()
    tally.add(10, round(10 / (0.8 * rate)))
    calibration.mark_stable(drafting, rate, tally)
    alone, kept = chooser.load(before.choice), calibration.kept(drafting) * WORTH_DRAFTING
    assert kept < 0.9
    expected_us = (1 / (kept * rate) - 1 / alone.rate) * rate * chooser.load(drafting).cycle_us
    assert settled(chooser, before.choice).probe_loss_us == pytest.approx(expected_us)


def test_a_crowds_probes_are_booked_with_what_a_rehearsal_says() -> None:
    crowd, calibration = DEAR._replace(sessions=4, groups=4.0, catch_up_us=2500), Calibration()
    before = settled(Chooser(text_of(0.1), crowd, 8), PlanChoice(7, 1, 1))
    rate, tally = Chooser(text_of(0.1), crowd, 8).load(even(1)).rate, ChoiceCounts()
    tally.add(10, round(10 / (0.8 * rate)))
    calibration.mark_stable(even(1), rate, tally)
    assert settled(Chooser(text_of(0.1), crowd, 8, calibration=calibration), PlanChoice(7, 1, 1)) == before
    assert before.catch_up_us == 0


@pytest.mark.parametrize(("choice", "margin"), [(even(2), WORTH_DRAFTING), (PlanChoice(3, 2, 2), WORTH_GATED)])
def test_a_lone_sessions_margins_do_not_add_up(choice: PlanChoice, margin: float) -> None:
    chooser = Chooser(text_of(0.1, 0.9), CHEAP, 8)
    chooser.load(even(2))
    enough = margin * chooser.load(choice).rate / chooser.load(PlanChoice(NUM_BUCKETS, 2, 2)).rate
    assert chooser.trial(choice, 1.001 * enough) is not None
    assert chooser.trial(choice, 0.999 * enough) is None


def test_about_as_good_is_no_reason_to_change() -> None:
    chooser = Chooser(text_of(0.7), CHEAP, 8)
    best = settled(chooser).choice
    assert best_of(chooser, best).choice == best


@pytest.mark.parametrize(("share", "drafts"), [(1.0, True), (0.5, False)])
def test_drafts_that_do_not_keep_their_promise_are_left_for_the_target_alone(share: float, drafts: bool) -> None:
    calibration = Calibration()
    chooser = Chooser(text_of(0.6), CHEAP, 8, calibration=calibration)
    best = settled(chooser).choice
    rate, tally = chooser.load(best).rate, ChoiceCounts()
    tally.add(10, round(10 / (share * rate)))
    calibration.mark_stable(best, rate, tally)
    assert best_of(chooser, best).choice.drafts is drafts


class AloneComesTo(Calibration):
    """The target alone comes to a share of what it promises, drafts to all of it."""

    share = 1.0

    def kept(self, choice: PlanChoice, *, crowded: bool = False) -> float:
        return 1.0 if choice.drafts else self.share


@pytest.mark.parametrize(
    ("sessions", "gain", "from_alone", "drafts"),
    [(1, 1.005, False, False), (1, 1.02, True, False), (1, 1.05, True, True), (4, 1.005, False, True)],
)
def test_drafts_that_gain_little_are_worth_it_in_a_crowd_alone(
    sessions: int, gain: float, from_alone: bool, drafts: bool
) -> None:
    """The best of many promises is mostly too high, that of the target alone is one."""
    calibration = AloneComesTo()
    prices = CHEAP._replace(sessions=sessions, groups=float(sessions))
    chooser = Chooser(text_of(0.6), prices, 8, calibration=calibration)
    best = settled(chooser).choice
    alone = best._replace(closed=7)
    calibration.share = chooser.load(best).rate / gain / chooser.load(alone).rate
    assert best_of(chooser, alone if from_alone else best).choice.drafts is drafts


# Where proposals are prepared.

AHEAD_PRICES = DEAR._replace(there_us=300, lead_us=3 * DEAR.token_us)


def ahead(chance: float) -> Ahead:
    return Ahead([chance] * 9, [chance] * 9)


def test_a_dear_draft_pays_where_it_is_prepared() -> None:
    dear = AHEAD_PRICES._replace(token_us=6000, lead_us=12_000)
    never, often = (settled(Chooser(text_of(0.5), dear, 8, there)) for there in (None, ahead(0.9)))
    assert not never.choice.drafts
    assert often.choice.drafts
    assert often.rate > 1.05 * never.rate


def test_what_is_never_there_is_not_counted_on() -> None:
    assert not settled(Chooser(text_of(0.2), AHEAD_PRICES, 8, ahead(0.0))).choice.drafts


def test_more_than_is_there_is_asked_for_where_that_pays() -> None:
    text, there = text_of(0.92), ahead(0.9)
    cheap = AHEAD_PRICES._replace(token_us=300)
    dear, good = (settled(Chooser(text, prices, 8, there)).choice for prices in (AHEAD_PRICES, cheap))
    assert good.easy > dear.easy >= 3


def test_no_more_of_a_poor_draft_is_used_than_it_is_worth() -> None:
    heavy = AHEAD_PRICES._replace(forwards=FORWARDS._replace(row_us=2000))
    assert settled(Chooser(text_of(0.5), heavy, 8, ahead(0.9))).choice.easy < 4
