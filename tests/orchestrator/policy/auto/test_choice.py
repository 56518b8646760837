"""The rule: which plan is found on a text at given prices."""

from collections.abc import Generator
from dataclasses import replace

import pytest

from orchestrator.policy.auto.choice import (
    SWITCH_GAIN,
    GammaChoice,
    RatedChoice,
    RoundCounts,
    rate,
    running_us,
    search,
    shared,
    simulate,
)
from orchestrator.policy.auto.costs import Prices
from orchestrator.policy.auto.history import NUM_BUCKETS, History, TokenHistory, bucket_of
from specgate.types import ALWAYS_SOLO, ForwardCost
from tests.orchestrator.policy.auto.support import SURE, UNSURE, a_round

FLAT = (ForwardCost(1, 1000), ForwardCost(17, 1000))
CHEAP = Prices(FLAT, 1.0, 50.0, 50.0, 50.0, 1000.0)
TOP = NUM_BUCKETS - 1
EASY_TEXT = TokenHistory([TOP] * 300, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0] * 30)
MIXED = TokenHistory([TOP] * 10 + [0] * 10, [*range(9, -1, -1), *[0] * 10])


def found(text: TokenHistory, prices: Prices, last: GammaChoice | None = None, max_gamma: int = 8) -> RatedChoice:
    def run() -> Generator[None, None, None]:
        results.append((yield from search(text, prices, max_gamma, last)))

    results: list[RatedChoice] = []
    assert len(list(run())) > 0
    return results[0]


def test_a_text_is_cut_into_rounds() -> None:
    assert simulate(MIXED, GammaChoice(0, 4)) == RoundCounts(20, 12, 0, 48)
    assert simulate(MIXED, GammaChoice(1, 4)) == RoundCounts(20, 2, 10, 8)
    assert simulate(MIXED, GammaChoice(NUM_BUCKETS, 4)) == RoundCounts(20, 0, 20, 0)
    assert simulate(TokenHistory([0, TOP, 0, 0, TOP, TOP], [0] * 6), GammaChoice(1, 4)) == RoundCounts(6, 3, 3, 12, 2)


def test_a_gate_that_goes_on_and_off_is_dearer() -> None:
    text = TokenHistory([0, TOP, TOP] * 100, [0, 2, 1] * 100)
    assert found(text, CHEAP).choice.closed == 1
    assert found(text, CHEAP._replace(resume_us=1000.0)).choice.closed != 1


def test_a_draft_ends_after_its_first_unsure_token() -> None:
    # The draft is unsure of every third token, and wrong in every sixth.
    ends = [3, 2, 1] * 4
    text = TokenHistory([TOP] * 12, [5, 4, 3, 2, 1, 0] * 2, ([99] * 12, ends))
    assert simulate(text, GammaChoice(0, 5, 1)) == RoundCounts(12, 4, 0, 10)
    assert simulate(text, GammaChoice(0, 2, 1)) == RoundCounts(12, 4, 0, 8)


def test_a_draft_that_knows_when_it_is_wrong_ends_there() -> None:
    runs, unsure = [6, 5, 4, 3, 2, 1, 0, 1, 0] * 40, [7, 6, 5, 4, 3, 2, 1, 2, 1] * 40
    text = TokenHistory([TOP] * 360, runs, ([999] * 360, unsure))
    dear = CHEAP._replace(token_us=300.0)
    blind, knowing = found(text._replace(ends=()), dear), found(text, dear)
    assert (blind.choice.stop, knowing.choice.stop) == (0, 1)
    assert knowing.rate > 1.05 * blind.rate
    # What it was sure of is forgotten.
    assert found(text._replace(ends=()), dear, knowing.choice).choice.stop == 0


def test_the_best_choice_by_hand() -> None:
    assert found(EASY_TEXT, CHEAP).choice == GammaChoice(0, 4)  # Runs of ten tokens are two rounds.
    assert found(MIXED, CHEAP).choice.closed in (1, 2, 3, 4)
    assert not found(MIXED, CHEAP._replace(token_us=5000.0)).choice.drafts
    never = TokenHistory([TOP] * 100, [0] * 100)
    alone = found(never, CHEAP)
    assert alone.choice.solo_below == ALWAYS_SOLO
    assert alone.rate == pytest.approx(1 / 1000)
    # A round of one token that is never accepted: its overhead and its draft token for nothing.
    assert alone.probe_us == pytest.approx(100)


def test_the_verifiers_threshold_is_where_the_open_buckets_begin() -> None:
    for closed in range(1, NUM_BUCKETS):
        threshold = GammaChoice(closed, 1).solo_below
        assert (bucket_of(threshold), bucket_of(threshold - 1e-6)) == (closed, closed - 1)


def test_the_choice_in_use_stays_unless_another_is_much_better() -> None:
    best = found(EASY_TEXT, CHEAP).choice
    near = GammaChoice(0, 5)
    gains = []
    for token_us, chosen in ((10.0, near), (20.0, best)):
        prices = CHEAP._replace(token_us=token_us)
        assert found(EASY_TEXT, prices).choice == best
        assert found(EASY_TEXT, prices, near).choice == chosen
        gains.append(rate(EASY_TEXT, best, prices) / rate(EASY_TEXT, near, prices))
    assert 1 < gains[0] < SWITCH_GAIN < gains[1]
    assert found(EASY_TEXT, CHEAP, GammaChoice(NUM_BUCKETS, 1)).choice == best


def test_sessions_that_share_forwards_wait_for_each_other() -> None:
    alone, drafts = RoundCounts(1000, 1, 999, 0), RoundCounts(100, 50, 0, 200)
    crowd = CHEAP._replace(sessions=8)
    # Eight sessions that draft nearly nothing are in every forward together.
    assert shared(alone, crowd).cycle_us == pytest.approx(1000 + 7 * 50, rel=0.02)
    a_row_each = crowd._replace(target=(ForwardCost(1, 1000), ForwardCost(9, 9000)))
    assert shared(alone, a_row_each).cycle_us == pytest.approx(8000 + 7 * 50, rel=0.02)
    assert shared(drafts, CHEAP).cycle_us < shared(drafts, crowd).cycle_us < 3 * shared(drafts, CHEAP).cycle_us


def test_what_is_remembered_says_how_drafts_fare() -> None:
    history = History()
    assert len(set(history.agreement()[:NUM_BUCKETS])) == NUM_BUCKETS
    for _ in range(60):
        history.add(a_round(4, 4, SURE))
        history.add(a_round(2, 0, UNSURE))
    assert history.agreement()[TOP] > 0.95
    assert history.agreement()[0] < 0.1
    text = history.tokens()
    assert text.runs[-6:] == [5, 4, 3, 2, 1, 0] or text.runs[-6:-1] == [4, 3, 2, 1, 0]


def test_poor_texts_are_remembered_apart() -> None:
    history = History()
    for _ in range(60):
        history.add(a_round(4, 4, SURE))
        history.add(replace(a_round(4, 0, SURE), agreement=0.2))
    usual, poor = history.agreement()[TOP], history.agreement()[TOP + NUM_BUCKETS]
    assert usual > 0.95
    assert poor < 0.05


def test_many_sessions_leave_the_rows_to_the_texts_whose_drafts_are_accepted() -> None:
    poor = NUM_BUCKETS + TOP
    mixed = TokenHistory([TOP] * 200 + [poor] * 200, [*range(9, -1, -1)] * 20 + [0] * 200)
    choice = found(mixed, CHEAP._replace(sessions=8)).choice
    assert choice.leaves_poor
    assert choice.of(0.2) == choice.alone
    assert choice.of(0.6) == choice.of(None) == choice
    assert choice.drafts
    assert not found(EASY_TEXT, CHEAP._replace(sessions=8)).choice.leaves_poor


def test_what_the_draft_was_sure_of_is_remembered() -> None:
    history = History()
    history.add(a_round(4, 4))
    assert history.tokens().ends == ()
    for _ in range(60):
        history.add(a_round(4, 2, sure=(0.9, 0.7, 0.3, 0.9)))
    never, *_, last = history.tokens().ends
    assert never[-6:] == [6, 5, 4, 3, 2, 1]
    # What the target put in place of the third token begins the next round.
    assert last[-6:] == [2, 1, 1, 2, 1, 1]


def test_of_tokens_that_nobody_drafted_the_draft_is_as_sure_as_of_others_like_them() -> None:
    history = History()
    for _ in range(40):
        history.add(a_round(2, 1, sure=(0.99, 0.05)))
    for _ in range(100):
        history.add(a_round(0, 0))
    text = history.tokens()
    wrong = [end for run, end in zip(text.runs, text.ends[-1], strict=True) if run == 0]
    assert len(wrong) > 60
    assert sum(end == 1 for end in wrong) > 0.8 * len(wrong)


def test_a_text_that_ends_within_its_accepted_tokens_adds_those() -> None:
    history = History()
    before = len(history.tokens().runs)
    history.add(replace(a_round(4, 4), num_tokens=2))
    assert len(history.tokens().runs) == before + 2


def test_a_useless_draft_is_known_in_buckets_where_it_was_not_tried() -> None:
    history = History()
    for _ in range(30):
        history.add(a_round(2, 0, SURE))
    assert max(history.agreement()) < 0.2


FAR = CHEAP._replace(overhead_us=20_000.0, draft_us=100.0, round_trip_us=20_000.0)


def test_the_time_of_a_running_draft_by_hand() -> None:
    text = TokenHistory([TOP] * 6, [3, 2, 1, 0, 1, 0])
    prices = FAR._replace(round_trip_us=500.0, draft_us=250.0)
    # One token alone, until the first two are there; the second of them and the target's own after it; two, of which
    # the first is wrong. Then one alone again, and one with what came meanwhile.
    assert running_us(text, GammaChoice(0, 2, running=True), prices) == 5000.0
    # Nothing is taken behind an unsure token.
    assert running_us(text._replace(states=[0] * 6), GammaChoice(1, 2, running=True), prices) == 6000.0
    assert running_us(text, GammaChoice(0, 2, running=True), prices._replace(running_pace=2.0)) == 10_000.0


def test_far_away_a_draft_runs_where_it_is_right_for_long_and_else_the_target_is_alone() -> None:
    right = TokenHistory([TOP] * 600, [*range(199, -1, -1)] * 3)
    choice = found(right, FAR).choice
    assert choice.running
    assert choice.drafts
    # Nobody can wait so long for each draft.
    assert not found(right, FAR._replace(round_trip_us=0.0)).choice.drafts
    assert not found(TokenHistory([TOP] * 600, [0] * 600), FAR).choice.drafts
    # One that takes as long as the target is never ahead of it.
    assert not found(right, FAR._replace(draft_us=1000.0)).choice.drafts
    # A choice that cannot be had any more is not kept.
    assert not found(right, FAR._replace(round_trip_us=0.0), last=choice).choice.running


def test_a_run_and_what_is_drafted_ahead_are_as_long_as_the_way() -> None:
    assert CHEAP.longest_run == FAR._replace(round_trip_us=100.0).longest_run == 64
    assert FAR.longest_run == 1000
    assert FAR.ahead(2) == 64
    assert FAR._replace(round_trip_us=3000.0).ahead(2) == 2 * 9 + 8


def test_cheap_tokens_are_another_aim_than_fast_ones() -> None:
    """One at a time the draft makes a request faster; what it takes of the drafter decides whether it is cheap."""
    wide = CHEAP._replace(sessions=8, draft_us=8 * 100.0)
    assert found(EASY_TEXT, wide._replace(drafter_price=0.0)).choice.drafts
    assert not found(EASY_TEXT, wide._replace(drafter_price=20.0)).choice.drafts
    # Waiting for a draft costs nothing, and a running draft is none.
    far = found(EASY_TEXT, FAR._replace(drafter_price=0.0))
    assert far.choice.drafts
    assert not far.choice.running
