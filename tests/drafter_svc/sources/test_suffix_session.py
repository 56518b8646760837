"""A session without a model: it follows, drafts by evidence, and announces before it is asked."""

from collections.abc import Sequence
from typing import Any

import pytest

from drafter_svc.sources.suffix_session import SuffixSession
from specgate.errors import KVCacheFull, OutOfSync
from specgate.service.text import TextPool
from specgate.types import (
    DraftMethod,
    DraftRequest,
    Proposal,
    RunningDraft,
    SamplingParams,
    SparseDistribution,
    Verification,
)
from tests.support.sessions import make_spec

COPY = (5, 6, 7, 8, 9, 10, 5, 6, 7)
"""Goes on with 8, 9, 10, for what it is known."""


class Client:
    """Asks one session, and hears what it announces."""

    def __init__(self, prompt: Sequence[int] = COPY, num_tokens: int = 1000, **fields: Any) -> None:
        self.pool = TextPool(num_tokens)
        self.session = SuffixSession(make_spec(prompt_token_ids=tuple(prompt), **fields), self.pool)
        self.announced: list[Any] = []
        self._length, self._round = len(prompt), 0

    def ask(self, token_ids: Sequence[int] = (), gamma: int = 0, prepare: int = 0, running: int = 0) -> Proposal:
        self._round += 1
        request = DraftRequest(self._round, self._length, tuple(token_ids), gamma, 0.0, prepare, running)
        self._length += len(token_ids)
        work = self.session.draft(request)
        with pytest.raises(StopIteration) as stop:
            next(work)
        self.session.ahead.start(0, _no_engine, self.announced.append)
        proposal: Proposal = stop.value.value
        return proposal


def _no_engine(task: Any) -> Any:
    raise AssertionError("a session without a model has no use for an engine")


def test_a_copy_is_drafted_and_told_whose_it_is() -> None:
    proposal = Client().ask(gamma=2)
    assert (proposal.draft_token_ids, proposal.method) == ((8, 9), DraftMethod.SUFFIX)
    assert proposal.draft_probs == ()


def test_without_evidence_the_proposal_is_empty_and_nothing_is_announced() -> None:
    client = Client((1, 2, 3, 4))
    assert client.ask(gamma=4).draft_token_ids == ()
    client.ask(running=4)
    assert client.announced == []


def test_rejection_gets_distributions_of_one_token() -> None:
    sampling = SamplingParams(temperature=1.0)
    proposal = Client(verification=Verification.REJECTION, sampling=sampling).ask(gamma=2)
    assert proposal.draft_probs == (SparseDistribution((8,), (1.0,)), SparseDistribution((9,), (1.0,)))


def test_a_running_draft_is_told_once_as_far_as_its_evidence_goes() -> None:
    client = Client(COPY[:-2])
    client.ask(running=16)
    # One token is no evidence: what follows the next one is, if it comes true.
    (first,) = client.announced
    assert first == RunningDraft(7, (6, 7, 8, 9), DraftMethod.SUFFIX, num_awaited=1)
    client.ask((6,), running=16)
    client.ask((7,), running=16)
    assert client.announced[1:] == [RunningDraft(9, (8, 9, 10, 5, 6, 7), DraftMethod.SUFFIX)]
    client.ask((1,), running=16)
    assert len(client.announced) == 2


def test_a_copy_ends_with_a_stop_token() -> None:
    assert Client(stop_token_ids=frozenset({9})).ask(gamma=3).draft_token_ids == (8, 9)


def test_a_round_from_elsewhere_is_refused() -> None:
    client = Client()
    with pytest.raises(OutOfSync, match="the round starts at 3, the session is at 9"):
        next(client.session.draft(DraftRequest(1, 3, (), 2)))


def test_texts_share_a_number_of_tokens() -> None:
    with pytest.raises(KVCacheFull, match="9 tokens are asked for, 8 of 8 are free"):
        Client(num_tokens=8)
    client = Client(num_tokens=10)
    assert client.pool.free_tokens == 1
    client.session.free()
    client.session.free()
    assert client.pool.free_tokens == 10


def test_a_text_that_finds_no_room_drafts_no_more() -> None:
    client = Client(num_tokens=10)
    assert client.ask((8,), gamma=2).draft_token_ids == (9, 10)
    assert client.ask((9, 10), gamma=2).draft_token_ids == ()
    assert client.ask((5,), gamma=2).draft_token_ids == ()
