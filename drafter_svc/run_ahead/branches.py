"""The branches of one proposal: what its verdict is likely to commit, each with the next draft behind it."""

from collections.abc import Callable, Generator, Sequence, Set
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch

from drafter_svc.run_ahead.outcomes import AcceptanceRate, Candidate, Outcome, likeliest
from drafter_svc.sources.model import Draft, Terms
from drafter_svc.sources.source import Announce
from specgate.runtime.kv_pages import KVSequence, PagePool
from specgate.runtime.sampling_step import ForwardResult
from specgate.runtime.scheduler import ForwardRequest, logits_of
from specgate.types import AnnouncedProposal, Announcement, DraftMethod, TokenIds

Guessing = Generator[ForwardRequest, ForwardResult, None]
Submit = Callable[[Guessing], "Future[Any]"]
"""Queues a task on the engine, from any thread."""


class Drafting(NamedTuple):
    """How a session drafts, and what it thinks of the target.

    Attributes:
        extend: drafts on, to the draft's own terms.
        candidates: what the target may choose at the positions of these logits, from the draft's first one on.
        next_copied: the token that a draft goes on with if it is a copy; None where it is none, or the copy has ended.
    """

    extend: Callable[[Draft], Guessing]
    candidates: Callable[[torch.Tensor, Draft], list[list[Candidate]]]
    next_copied: Callable[[Draft], int | None]


class Tools(NamedTuple):
    """What a session's branches are made with.

    Attributes:
        pool: where the branches' pages come from.
        capacity: of the session's sequence, in tokens.
        stop_token_ids: behind these nothing is drafted.
        acceptance: of draft tokens, where it is one rate for all of them.
    """

    pool: PagePool
    capacity: int
    drafting: Drafting
    stop_token_ids: Set[int]
    acceptance: AcceptanceRate | None


COPY_CHANCE = 0.5
"""That the target goes on with a copy to the draft's end and one token more: often enough to look a round further."""


class Order(NamedTuple):
    """How many branches a proposal has at the most, where they are run, and who is told of them, if anybody is."""

    num_rows: int
    submit: Submit
    announce: Announce | None


class Branch(NamedTuple):
    """A draft behind a guessed outcome, the chance of that, and the job that drafts."""

    chance: float
    draft: Draft
    job: "Future[Any]"


class BranchSet:
    """The branches behind one proposal. Lives on the engine's thread, but for ``open``.

    Args:
        proposed: the proposal.
        terms: of what is drafted behind its outcomes.
        assumed: the tokens before the proposal that nobody has committed yet.
    """

    def __init__(self, tools: Tools, proposed: Draft, terms: Terms, assumed: TokenIds = ()) -> None:
        self.proposed = proposed
        self.terms = terms
        self.assumed = assumed
        self.rows: Sequence[Sequence[Candidate]] = ()
        """What the target may choose, by position from the proposal's first token on; () until that was looked at."""
        self.branches: dict[TokenIds, Branch] = {}
        """By the tokens of their outcomes, the likeliest first."""
        self._tools = tools
        self._forks: list[KVSequence] = []
        self._jobs: list[Future[Any]] = []
        self._num_drafting = 0
        self._drafted: set[TokenIds] = set()
        self.announced: TokenIds | None = None
        """The tokens of the likeliest outcome that was told of; None: nothing was told yet."""

    @property
    def is_busy(self) -> bool:
        return any(not job.done() for job in self._jobs)

    @property
    def is_alive(self) -> bool:
        """Whether there is a branch to go on with, or may still be."""
        return self.is_busy or any(self.named(ids) is not None for ids in self.branches)

    def open(self, order: Order) -> None:
        """Have the next draft prepared behind the likeliest outcomes. On any thread."""
        self._jobs.append(order.submit(self._prepare(order)))

    def named(self, outcome: TokenIds) -> Branch | None:
        """Return the branch of an outcome, if there is one to go on with."""
        branch = self.branches.get(outcome)
        if branch is None or not self._tools.pool.is_open(branch.draft.sequence) or _failed(branch.job):
            return None
        return branch

    def close(self, kept: Branch | None = None) -> None:
        """Close all branches but one; nothing is told any more."""
        for job in self._jobs:
            job.cancel()
        for fork in self._forks:
            if kept is None or fork is not kept.draft.sequence:
                self._tools.pool.discard(fork)
        self.branches, self._forks, self._jobs = {}, [], []

    def _prepare(self, order: Order) -> Guessing:
        """Open the branches, after a forward that tells what the target may say behind the last drafted token."""
        draft, tools = self.proposed, self._tools
        if draft.method is DraftMethod.SUFFIX:
            self._open_copy(order)
            return
        if draft.sequence.num_cached < len(draft.sequence) - 1:
            return
        logits, trunk, position = draft.logits, draft.sequence, len(draft.sequence) - len(draft.tokens)
        if not draft.ends_with(tools.stop_token_ids):
            trunk = self._fork(trunk, len(trunk))
            logits = [*logits, (yield from logits_of(trunk, 1))]
        self.rows = tools.drafting.candidates(torch.cat(logits), draft)
        acceptance = tools.acceptance.rate if tools.acceptance is not None else None
        guesses = likeliest(self.rows, draft.token_ids, order.num_rows, acceptance, tools.stop_token_ids)
        for outcome, chance in guesses.items():
            self._open(outcome, chance, trunk, position, order)
        if trunk is not draft.sequence:
            # Its pages go to its branches: the last one to write needs no copy.
            tools.pool.discard(trunk)

    def _open_copy(self, order: Order) -> None:
        """Open the branch on which the target goes on with the copy: no forward tells of another one."""
        draft = self.proposed
        if (token_id := self._tools.drafting.next_copied(draft)) is not None:
            num_drafted = len(draft.tokens)
            position = len(draft.sequence) - num_drafted
            self._open(Outcome(num_drafted, token_id), COPY_CHANCE, draft.sequence, position, order)

    def _open(self, outcome: Outcome, chance: float, trunk: KVSequence, position: int, order: Order) -> None:
        """Open a branch that drafts behind ``outcome``, if there is a page for it and anything to be drafted."""
        num_accepted, token_id = outcome
        length = position + num_accepted
        if self._tools.pool.num_free and length + 1 < self._tools.capacity:
            fork = self._fork(trunk, length)
            fork.append([token_id])
            draft = Draft(fork, self.terms)
            self._num_drafting += 1
            ids = (*self.proposed.token_ids[:num_accepted], token_id)
            job = order.submit(self._extend(ids, draft, order.announce))
            self._jobs.append(job)
            self.branches[ids] = Branch(chance, draft, job)

    def _extend(self, outcome: TokenIds, draft: Draft, announce: Announce | None) -> Guessing:
        try:
            yield from self._tools.drafting.extend(draft)
            self._drafted.add(outcome)
        finally:
            # Also where it was dropped: then nothing is told of it.
            self._num_drafting -= 1
            if not self._num_drafting and announce is not None:
                self._tell(announce)

    def _tell(self, announce: Announce) -> None:
        drafts = {ids: branch.draft for ids, branch in self.branches.items() if ids in self._drafted}
        if drafts:
            self.announced = next(iter(drafts))
            committed = len(self.proposed.sequence) - len(self.proposed.tokens) - len(self.assumed)
            told = (
                AnnouncedProposal(self.assumed + ids, tuple(draft.token_ids), draft.method)
                for ids, draft in drafts.items()
            )
            announce(Announcement(committed, tuple(told), self.terms.gamma, self.terms.stop_below))

    def _fork(self, trunk: KVSequence, length: int) -> KVSequence:
        fork = self._tools.pool.fork(trunk, length)
        self._forks.append(fork)
        return fork


def _failed(job: "Future[Any]") -> bool:
    return job.done() and not job.cancelled() and job.exception() is not None
