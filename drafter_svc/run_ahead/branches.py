"""The branches of one proposal: the outcomes that its verdict may have, each with the next draft after it."""

from collections.abc import Callable, Generator, Sequence, Set
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch

from drafter_svc.run_ahead.outcomes import Candidate, Outcome, likeliest
from drafter_svc.sources.draft import Draft, DraftLimits
from drafter_svc.sources.source import Announce, Submit
from specgate.runtime.kv_pages import KVSequence, PagePool
from specgate.runtime.sampling_step import ForwardResult
from specgate.runtime.scheduler import ForwardRequest, logits_of
from specgate.types import AnnouncedProposal, Announcement, DraftMethod, SessionSpec, TokenIds

Guessing = Generator[ForwardRequest, ForwardResult, None]


class BranchContext(NamedTuple):
    """What all branches of a session share.

    Attributes:
        pool: where their pages come from.
        capacity: the most tokens of the session's sequence.
        extend: drafts on, up to the draft's own limits.
        candidates: what the target may choose at the positions of these logits, from the draft's first token on.
        method: what the session's drafts are called.
    """

    spec: SessionSpec
    pool: PagePool
    capacity: int
    extend: Callable[[Draft], Guessing]
    candidates: Callable[[torch.Tensor, Draft], list[list[Candidate]]]
    method: DraftMethod

    @property
    def stop_token_ids(self) -> Set[int]:
        """After these nothing is drafted."""
        return self.spec.stop_token_ids


class BranchRequest(NamedTuple):
    """Which branches are wanted.

    Attributes:
        num_rows: the most branches of one proposal.
        submit: queues their work on the engine.
        announce: sends their proposals; None: they are not announced.
        acceptance: chance that a draft token is accepted, if one rate holds for all of them.
    """

    num_rows: int
    submit: Submit
    announce: Announce | None
    acceptance: float | None


class Branch(NamedTuple):
    """A draft after a guessed outcome, the chance of that outcome, and the job that drafts."""

    chance: float
    draft: Draft
    job: "Future[Any]"


class BranchSet:
    """The branches of one proposal. Lives on the engine's thread, but for ``open``.

    Args:
        proposed: the proposal.
        limits: of the drafts after its outcomes.
        assumed: the tokens before the proposal that are not committed yet.
    """

    def __init__(self, context: BranchContext, proposed: Draft, limits: DraftLimits, assumed: TokenIds = ()) -> None:
        self.proposed = proposed
        self.limits = limits
        self.assumed = assumed
        self.rows: Sequence[Sequence[Candidate]] = ()
        """What the target may choose, by position from the proposal's first token on; () before the forward ran."""
        self.branches: dict[TokenIds, Branch] = {}
        """By the tokens of their outcomes, the likeliest first."""
        self._context = context
        self._forks: list[KVSequence] = []
        self._jobs: list[Future[Any]] = []
        self._num_drafting = 0
        self._drafted: set[TokenIds] = set()
        self.announced: TokenIds | None = None
        """The tokens of the likeliest announced outcome; None before the announcement."""

    @property
    def is_busy(self) -> bool:
        return any(not job.done() for job in self._jobs)

    @property
    def is_alive(self) -> bool:
        """Whether a branch can be used, or may become so."""
        return self.is_busy or any(self.named(ids) is not None for ids in self.branches)

    def open(self, request: BranchRequest) -> None:
        """Queue the work that drafts after the likeliest outcomes. On any thread."""
        self._jobs.append(request.submit(self._prepare(request)))

    def named(self, outcome: TokenIds) -> Branch | None:
        """Return the branch of an outcome, or None if there is none that can be used."""
        branch = self.branches.get(outcome)
        if branch is None or not self._context.pool.is_open(branch.draft.sequence) or _failed(branch.job):
            return None
        return branch

    def close(self, kept: Branch | None = None) -> None:
        """Close all branches but one. Nothing is announced any more."""
        for job in self._jobs:
            job.cancel()
        for fork in self._forks:
            if kept is None or fork is not kept.draft.sequence:
                self._context.pool.discard(fork)
        self.branches, self._forks, self._jobs = {}, [], []

    def _prepare(self, request: BranchRequest) -> Guessing:
        """Run the last drafted token, guess what the target may choose, and open the branches."""
        draft, context = self.proposed, self._context
        if draft.sequence.num_cached < len(draft.sequence) - 1:
            return
        logits, trunk, start = draft.logits, draft.sequence, draft.start
        if not draft.ends_with(context.stop_token_ids):
            trunk = self._fork(trunk, len(trunk))
            logits = [*logits, (yield from logits_of(trunk, 1))]
        self.rows = context.candidates(torch.cat(logits), draft)
        guesses = likeliest(self.rows, draft.token_ids, request.num_rows, request.acceptance, context.stop_token_ids)
        for outcome, chance in guesses.items():
            self._open(outcome, chance, trunk, start, request)
        if trunk is not draft.sequence:
            # The branches keep its pages, and the last one to write needs no copy.
            context.pool.discard(trunk)

    def _open(self, outcome: Outcome, chance: float, trunk: KVSequence, start: int, request: BranchRequest) -> None:
        """Open a branch after ``outcome``, if there is a free page for it and room to draft."""
        num_accepted, token_id = outcome
        length = start + num_accepted
        if self._context.pool.num_free and length + 1 < self._context.capacity:
            fork = self._fork(trunk, length)
            fork.append([token_id])
            draft = Draft(fork, self.limits)
            self._num_drafting += 1
            ids = (*self.proposed.token_ids[:num_accepted], token_id)
            job = request.submit(self._extend(ids, draft, request.announce))
            self._jobs.append(job)
            self.branches[ids] = Branch(chance, draft, job)

    def _extend(self, outcome: TokenIds, draft: Draft, announce: Announce | None) -> Guessing:
        try:
            yield from self._context.extend(draft)
            self._drafted.add(outcome)
        finally:
            # A dropped branch counts too; it is not announced.
            self._num_drafting -= 1
            if not self._num_drafting and announce is not None:
                self._announce(announce)

    def _announce(self, announce: Announce) -> None:
        drafts = {ids: branch.draft for ids, branch in self.branches.items() if ids in self._drafted}
        if drafts:
            self.announced = next(iter(drafts))
            committed = self._context.spec.first_position + self.proposed.start - len(self.assumed)
            proposals = (
                AnnouncedProposal(self.assumed + ids, tuple(draft.token_ids), self._context.method, draft.confidences)
                for ids, draft in drafts.items()
            )
            announce(Announcement(committed, tuple(proposals), self.limits.gamma, self.limits.stop_below))

    def _fork(self, trunk: KVSequence, length: int) -> KVSequence:
        fork = self._context.pool.fork(trunk, length)
        self._forks.append(fork)
        return fork


def _failed(job: "Future[Any]") -> bool:
    return job.done() and not job.cancelled() and job.exception() is not None
