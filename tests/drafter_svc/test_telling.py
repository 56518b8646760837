"""An announcement comes once, and when it is due."""

import gc
import weakref

import pytest
import torch

from drafter_svc.draft import Draft, DraftToken, Terms
from drafter_svc.telling import Lateness, Telling
from specgate.runtime.kv_pages import PagePool
from specgate.types import Announcement

STEP_S = 2.0


class Round:
    """Two branches, a clock, and what was heard."""

    def __init__(self, due_s: float, slack_s: float = 0.0, wanted: float = 0.0) -> None:
        pool = PagePool(8, 16)
        self.now_s = 100.0
        self.heard: list[Announcement] = []
        self.telling = Telling(7, 100.0 + due_s, self.heard.append, slack_s, wanted, lambda: self.now_s)
        self.drafts = [Draft(pool.open((1, 2, 3), 16), Terms(1, 4, 0.0)) for _ in range(2)]
        for token_id, draft in enumerate(self.drafts):
            self.telling.begin((token_id,), draft)
        self.running = list(self.drafts)

    def step(self) -> None:
        """Draft a token of each, as the engine does: one branch after the other, to its next step or its end."""
        self.now_s += STEP_S
        for draft in list(self.running):
            draft.add(DraftToken(len(draft.tokens)), torch.zeros(1, 4))
            if not draft.goes_on:
                self.running.remove(draft)
                self.telling.end(draft, drafted=True)

    @property
    def lengths(self) -> list[list[int]]:
        return [[len(one.draft_token_ids) for one in announcement.proposals] for announcement in self.heard]


@pytest.mark.parametrize(("due_s", "num_steps"), [(0.0, 1), (1.9, 1), (4.1, 2), (7.9, 3), (8.1, 4)])
def test_it_is_told_before_a_step_that_would_be_late(due_s: float, num_steps: int) -> None:
    one = Round(due_s)
    for _ in range(num_steps - 1):
        one.step()
    assert not one.heard
    one.step()
    assert one.lengths == [[num_steps, num_steps]]
    # No step is under way that a request would have to wait for.
    assert not one.running


def test_it_is_told_early_where_all_is_drafted() -> None:
    one = Round(1000.0)
    one.step()
    for draft in one.drafts:
        assert not one.heard
        one.telling.end(draft, drafted=True)
    assert one.lengths == [[1, 1]]
    assert one.heard[0].position == 7


def test_of_a_dropped_branch_nothing_is_told() -> None:
    one = Round(1000.0)
    one.step()
    one.telling.end(one.drafts[0], drafted=False)
    one.telling.end(one.drafts[1], drafted=True)
    assert [proposal.token_id for proposal in one.heard[0].proposals] == [1]


def test_where_nothing_is_drafted_nothing_is_told() -> None:
    one = Round(1000.0)
    for draft in one.drafts:
        one.telling.end(draft, drafted=False)
    assert not one.heard


def test_a_round_that_is_over_keeps_no_draft_alive() -> None:
    one = Round(1000.0)
    one.step()
    one.telling.stop()
    held = weakref.ref(one.drafts[0].logits[0])
    gc.disable()
    try:
        one.drafts, one.running = [], []
        assert held() is None
    finally:
        gc.enable()


def test_a_round_that_is_over_tells_nothing() -> None:
    one = Round(0.0)
    one.telling.stop()
    one.step()
    for draft in one.drafts:
        one.telling.end(draft, drafted=True)
    assert not one.heard


@pytest.mark.parametrize(("slack_s", "num_more"), [(1.9, 0), (2.1, 1), (3.9, 1), (4.1, 2)])
def test_it_is_drafted_on_until_a_request_is_to_be_expected(slack_s: float, num_more: int) -> None:
    one = Round(due_s=2.0, slack_s=slack_s)
    one.step()
    for _ in range(num_more):
        # Told of every branch, with the same number of tokens, and once.
        assert one.lengths == [[1, 1]]
        one.step()
    assert one.lengths == [[1, 1]]
    assert not one.running
    assert [len(draft.tokens) for draft in one.drafts] == [1 + num_more] * 2


@pytest.mark.parametrize(("wanted", "num_more"), [(0.0, 1), (0.54, 1), (0.56, 2), (1.0, 2)])
def test_a_step_is_begun_if_enough_of_it_will_be_over(wanted: float, num_more: int) -> None:
    # A request is expected 2.9 s after the announcement, in the middle of the second step after it.
    one = Round(due_s=2.0, slack_s=2.9, wanted=wanted)
    one.step()
    for _ in range(num_more):
        assert one.running
        one.step()
    assert not one.running
    assert one.lengths == [[1, 1]]


def test_lateness_is_a_mean() -> None:
    lateness = Lateness()
    for _ in range(100):
        lateness.enter(2.0, wanted=True)
    assert lateness.mean_s == pytest.approx(2.0, rel=0.01)
    assert lateness.wanted == pytest.approx(1.0, rel=0.01)
    for _ in range(100):
        lateness.enter(2.0, wanted=None)
    assert lateness.wanted == pytest.approx(1.0, rel=0.01)
    for _ in range(100):
        lateness.enter(-1.0, wanted=False)
    assert lateness.mean_s == pytest.approx(0.0, abs=0.01)
    assert lateness.wanted == pytest.approx(0.0, abs=0.01)
