"""A drafter that runs ahead and its client, whose messages cross: what the client takes for announced is answered."""

import random
from collections import deque
from concurrent.futures import Future
from typing import Any

import pytest

from drafter_svc.drafter import DraftSession
from drafter_svc.run_ahead import outcomes
from drafter_svc.run_ahead import session as run_ahead
from orchestrator.decode.lookahead import MAX_ANNOUNCEMENTS_PER_ROUND, Announcer
from specgate.rpc.convert_ahead import announcement_from_pb, announcement_to_pb
from specgate.types import Announcement, DraftRequest, Proposal, SamplingParams
from tests.support.models import KnownModel, run_task
from tests.support.sessions import GREEDY, PROMPT, VOCAB_SIZE, Ids, known_model, make_spec

ROUNDS = 12
STOP_BELOW = 0.001
"""Ends hardly any draft, and is another number as a float32."""


@pytest.fixture(autouse=True)
def every_guess_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models as small as these are sure of nothing."""
    monkeypatch.setattr(outcomes, "WORTH_A_ROW", 0.01)
    monkeypatch.setattr(run_ahead, "WORTH_LOOKING", 0.0)


class Talk:
    """One session on a drafter, its client, and what is on its way between them."""

    def __init__(self, model: KnownModel, seed: int, sampling: SamplingParams, *, loses: bool, steady: bool) -> None:
        self.random = random.Random(seed)
        self.model, self.loses, self.steady = model, loses, steady
        self.session = DraftSession(make_spec(max_tokens=100, sampling=sampling), model.pool, VOCAB_SIZE, 128)
        self.client = Announcer()
        self.tasks: deque[tuple[Any, Future[Any]]] = deque()
        self.on_its_way: deque[Announcement] = deque()
        self.length, self.may_announce, self.num_foreseen = len(PROMPT), 0, 0
        run_task(model, self.session.warm())

    def submit(self, task: Any) -> "Future[Any]":
        self.tasks.append((task, Future()))
        return self.tasks[-1][1]

    def announce(self, announcement: Announcement) -> None:
        self.may_announce -= 1
        assert self.may_announce >= 0
        if not (self.loses and self.random.random() < 0.2):
            self.on_its_way.append(announcement_from_pb(announcement_to_pb(announcement).announced))

    def guess(self, num_tasks: int) -> None:
        """Run so many of the tasks that wait; those that were cancelled are not run."""
        while self.tasks and num_tasks:
            task, job = self.tasks.popleft()
            if job.cancelled():
                task.close()
            else:
                run_task(self.model, task)
                job.set_result(None)
                num_tasks -= 1

    def arrive(self) -> None:
        while self.on_its_way:
            self.client.add(self.on_its_way.popleft())

    def round(self, number: int, token_ids: Ids) -> Proposal:
        gamma = 3 if self.steady else self.random.choice((3, 3, 3, 0, 1, 5))
        prepare = 0 if self.steady else self.random.choice((0, 0, 2, 4))
        request = DraftRequest(number, self.length - len(token_ids), token_ids, gamma, STOP_BELOW, prepare)
        foreseen = self.client.announced(request)
        self.client.commit(request)
        self.may_announce += MAX_ANNOUNCEMENTS_PER_ROUND
        # What is told before the drafter has the request crosses it.
        self.guess(self.random.choice((0, 0, 1, 5, 50)))
        proposal = run_task(self.model, self.session.draft(request))
        self.session.ahead.start(4, self.submit, self.announce)
        self.arrive()
        if foreseen is not None:
            assert foreseen.draft_token_ids == proposal.draft_token_ids
            self.num_foreseen += 1
        return proposal

    @property
    def branches(self) -> list[Ids]:
        # What nobody is told of is seen nowhere else.
        return [ids for branches in self.session.guesses._branch_sets[:1] for ids in branches.branches]

    def outcome(self, drafted: Ids) -> Ids:
        """What the target commits: mostly what is likely."""
        branches = self.branches
        if branches and self.random.random() < 0.8:
            return branches[0] if self.random.random() < 0.8 else self.random.choice(branches)
        return (*drafted[: self.random.randint(0, len(drafted))], self.random.randrange(VOCAB_SIZE))

    def run(self) -> int:
        """Talk, and return in how many rounds the proposal was foreseen."""
        token_ids: Ids = ()
        for number in range(1, ROUNDS + 1):
            proposal = self.round(number, token_ids)
            self.guess(self.random.choice((0, 1, 5, 50, 50)))
            if self.random.random() < 0.8:
                self.arrive()
            token_ids = self.outcome(proposal.draft_token_ids)
            self.length += len(token_ids)
        self.session.free()
        assert not self.model.pool.sequences
        self.model.pool.check_integrity()
        return self.num_foreseen


@pytest.mark.parametrize("loses", [False, True])
@pytest.mark.parametrize("steady", [False, True])
@pytest.mark.parametrize("mode", ["greedy", "shared noise"])
def test_what_is_taken_for_announced_is_answered(mode: str, steady: bool, loses: bool) -> None:
    model, sampling = known_model(), GREEDY if mode == "greedy" else SamplingParams()
    assert sum(Talk(model, seed, sampling, loses=loses, steady=steady).run() for seed in range(12)) > 12


def test_an_announcement_that_is_lost_costs_the_round_that_it_was_of() -> None:
    """Everything comes true."""
    talk = Talk(known_model(), 0, GREEDY, loses=False, steady=True)
    token_ids: Ids = ()
    num_foreseen = []
    for number in range(1, ROUNDS + 1):
        assert talk.round(number, token_ids).draft_token_ids
        num_foreseen.append(talk.num_foreseen)
        talk.guess(50)
        if number == 1:
            talk.on_its_way.popleft()
        talk.arrive()
        token_ids = talk.branches[0]
        talk.length += len(token_ids)
    assert num_foreseen == [0, 0, *range(1, ROUNDS - 1)]
