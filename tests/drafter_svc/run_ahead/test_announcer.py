"""An announcement comes once, when all is there."""

import gc
import weakref

import pytest
import torch

from drafter_svc.run_ahead.announcer import Announcer
from drafter_svc.run_ahead.outcomes import Outcome
from drafter_svc.sources.model import Draft, DraftToken, Terms
from specgate.runtime.kv_pages import PagePool
from specgate.types import Announcement


class Round:
    """Two branches, each of which has a token, and what was heard."""

    def __init__(self) -> None:
        pool = PagePool(8, 16)
        self.heard: list[Announcement] = []
        self.announcer = Announcer(7, self.heard.append)
        self.drafts = [Draft(pool.open((1, 2, 3), 16), Terms(1, 4, 0.0)) for _ in range(2)]
        for token_id, draft in enumerate(self.drafts):
            self.announcer.begin(Outcome(0, token_id), draft)
            draft.add(DraftToken(5), torch.zeros(1, 4))


def test_it_is_told_where_all_is_drafted() -> None:
    one = Round()
    one.drafts[1].add(DraftToken(6), torch.zeros(1, 4))
    for draft in one.drafts:
        assert not one.heard
        one.announcer.end(draft, drafted=True)
    (announcement,) = one.heard
    assert announcement.position == 7
    assert [proposal.draft_token_ids for proposal in announcement.proposals] == [(5,), (5, 6)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_a_dropped_branch_nothing_is_told(order: tuple[int, int]) -> None:
    one = Round()
    for index in order:
        one.announcer.end(one.drafts[index], drafted=index == 1)
    (announcement,) = one.heard
    assert [proposal.token_id for proposal in announcement.proposals] == [1]


def test_where_nothing_is_drafted_nothing_is_told() -> None:
    one = Round()
    for draft in one.drafts:
        one.announcer.end(draft, drafted=False)
    assert not one.heard


def test_a_round_that_is_over_keeps_no_draft_alive() -> None:
    one = Round()
    one.announcer.stop()
    held = weakref.ref(one.drafts[0].logits[0])
    gc.disable()
    try:
        one.drafts = []
        assert held() is None
    finally:
        gc.enable()


def test_a_round_that_is_over_tells_nothing() -> None:
    one = Round()
    one.announcer.stop()
    for draft in one.drafts:
        one.announcer.end(draft, drafted=True)
    assert not one.heard
