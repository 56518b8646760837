"""An announcement comes once, and when it is due."""

import gc
import weakref

import pytest
import torch

from drafter_svc.draft import Draft, DraftToken, Terms
from drafter_svc.telling import Telling
from specgate.runtime.kv_pages import PagePool
from specgate.types import Announcement

STEP_S = 2.0


class Round:
    """Two branches, a clock, and what was heard."""

    def __init__(self, due_s: float) -> None:
        pool = PagePool(8, 16)
        self.now_s = 100.0
        self.heard: list[Announcement] = []
        self.telling = Telling(7, 100.0 + due_s, self.heard.append, lambda: self.now_s)
        self.drafts = [Draft(pool.open((1, 2, 3), 16), Terms(1, 4, 0.0)) for _ in range(2)]
        for token_id, draft in enumerate(self.drafts):
            self.telling.begin((token_id,), draft)
        self.running = list(self.drafts)

    def step(self) -> None:
        """Draft a token of each, as the engine does: one branch after the other, to its next step or its end."""
        self.now_s += STEP_S
        for draft in list(self.running):
            draft.add(DraftToken(len(draft.tokens)), torch.zeros(1, 4))
            if len(draft.tokens) == draft.terms.gamma:
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


def test_it_is_drafted_on_behind_what_was_told() -> None:
    one = Round(due_s=0.0)
    for _ in range(4):
        one.step()
    # Told of every branch, with the same number of tokens, and once.
    assert one.lengths == [[1, 1]]
    assert [len(draft.tokens) for draft in one.drafts] == [4, 4]
    assert not one.running
