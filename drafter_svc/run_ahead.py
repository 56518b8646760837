"""Run-ahead: while the target judges a proposal, draft the next one behind each of its likely outcomes.

An outcome is what a verdict commits: so many tokens of the proposal, then one of the target's own. A branch is a fork
of the session's sequence that ends with an outcome; it drafts as the session itself would, when nobody else needs the
engine. The verdict names at most one branch. The session goes on as that one, where it stands; all others are closed.

Why that is exact: a proposal is a function of the committed tokens and of the round's number, and a branch computes the
same function. It uses the randomness of the coming round, (seed, round + 1, position, purpose), which nothing before it
has used, and it is asked for by the very tokens it was made for. So it does not matter whether a proposal was prepared,
nor which guesses were made, nor what they were made from: a hit saves time and changes no token. A branch that has not
ended is finished, not dropped. Speculative speculative decoding (Kumar, Dao, 2026) draws another proposal on a miss
than on a hit, which is biased above temperature 0.
"""

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from drafter_svc.account import Account
from drafter_svc.draft import Draft, Terms
from drafter_svc.outcomes import Acceptance, Candidate, likeliest
from drafter_svc.telling import Announce, Telling
from specgate.runtime.choosing import Answer
from specgate.runtime.kv_pages import PagePool, Sequence
from specgate.runtime.scheduler import Need, logits_of
from specgate.types import DraftRequest, SessionSpec, common_prefix_length

RECENT_ROUNDS = 8
"""Rounds whose longest draft says how far a branch is drafted."""

Ids = tuple[int, ...]
Guessing = Generator[Need, Answer, None]
Submit = Callable[[Guessing], "Future[Any]"]
"""Queues a task on the engine, from any thread."""
Extend = Callable[[Draft], Guessing]
"""Drafts on, to the draft's own terms."""
Candidates = Callable[[torch.Tensor, Draft], list[list[Candidate]]]
"""What the target may choose at the positions of these logits, from the draft's first one on."""


class Branch(NamedTuple):
    """A draft behind a guessed outcome, and the job that makes it."""

    draft: Draft
    job: "Future[Any]"


class RunAhead:
    """One session's branches. Lives on the engine's thread, but for ``start``, and ``was_announced`` between rounds.

    Args:
        capacity: of the session's sequence, in tokens.
        extend, candidates: how the session drafts, and what it thinks of the target.
    """

    def __init__(
        self, spec: SessionSpec, pool: PagePool, capacity: int, extend: Extend, candidates: Candidates
    ) -> None:
        self._rejects = spec.rejects
        self._acceptance = Acceptance()
        self._account = Account()
        self._is_guessing = True
        self._stop_token_ids = spec.stop_token_ids
        self._pool = pool
        self._capacity = capacity
        self._extend = extend
        self._candidates = candidates
        self._proposed: Draft | None = None
        self._gammas: deque[int] = deque(maxlen=RECENT_ROUNDS)
        self._coming: Terms | None = None
        self._branches: dict[Ids, Branch] = {}
        self._forks: list[Sequence] = []
        self._jobs: list[Future[Any]] = []
        self._telling: Telling | None = None
        self.was_announced = False
        """What the round that was begun last proposes: unless it crossed the request, nobody waits for the answer."""

    def begin(self, sequence: Sequence, request: DraftRequest, outcome: Ids) -> Draft:
        """Begin a round: return the draft that was prepared for what was just committed, or an empty one.

        Args:
            sequence: the session's, which holds the committed tokens and no others.
            outcome: the tokens that were committed since the last round.
        """
        terms = Terms.of(request)
        self._learn(outcome)
        guessed, busy = bool(self._jobs), any(not job.done() for job in self._jobs)
        told = self._telling is not None and self._telling.is_told
        prepared = self._close_all_but(outcome)
        draft = Draft(sequence, terms)
        if prepared is not None:
            self._pool.adopt(sequence, prepared.sequence)
            draft = replace(prepared, sequence=sequence, terms=terms)
            draft.cut(terms.gamma if self._fits(prepared.terms, terms) else 0)
        if guessed and terms.gamma:
            self._account.enter(saved=len(draft.tokens), waited=busy and prepared is None)
        self._proposed = draft
        self.was_announced = told and 0 < len(draft.tokens) == terms.gamma
        if terms.gamma:
            # For a gate that changes its mind: a draft that is too long is cut, one that is too short is waited for.
            self._gammas.append(terms.gamma)
        if terms.gamma or request.prepare:
            if terms.gamma or self._coming is None:
                # A round that asks for nothing says nothing of how the next draft ends.
                self._coming = terms
            # Holds for the solo tokens that follow, too: only rounds with a draft tell what guessing brought.
            self._is_guessing = self._account.pays()
        if self._coming is not None:
            self._coming = self._coming._replace(
                round=terms.round + 1, gamma=request.prepare or max(self._gammas, default=0)
            )
        return draft

    def start(self, num_rows: int, submit: Submit, announce: Announce | None = None) -> None:
        """Prepare the likeliest outcomes of the round that was just begun, ``num_rows`` at the most. On any thread.

        Args:
            announce: told of the proposals once they are there; not in rejection mode, where they are large,
                seldom asked for, and hold for one round alone.
        """
        if num_rows > 0 and self._coming is not None and self._coming.gamma and self._is_guessing:
            announce = None if self._rejects else announce
            self._jobs.append(submit(self._prepare(num_rows, submit, announce)))

    def free(self) -> None:
        """Close all branches, and let go of the last draft: its logits are as large as anything that a session has."""
        self._close_all_but(None)
        self._proposed = None

    def _fits(self, prepared: Terms, asked: Terms) -> bool:
        """Return whether a prepared draft is what would be drafted now, but for its length."""
        return prepared.stop_below == asked.stop_below and (not self._rejects or prepared.round == asked.round)

    def _close_all_but(self, outcome: Ids | None) -> Draft | None:
        named = self._branches.get(outcome) if outcome is not None else None
        if named is not None and (not self._pool.is_open(named.draft.sequence) or _failed(named.job)):
            named = None
        for job in self._jobs:
            job.cancel()
        for fork in self._forks:
            if named is None or fork is not named.draft.sequence:
                self._pool.discard(fork)
        if self._telling is not None:
            self._telling.stop()
        self._branches, self._forks, self._jobs, self._telling = {}, [], [], None
        return named.draft if named is not None else None

    def _learn(self, outcome: Ids) -> None:
        if self._proposed is None or not (self._proposed.tokens and outcome):
            return
        drafted = self._proposed.token_ids
        self._acceptance.learn(len(drafted), common_prefix_length(drafted, outcome))

    def _prepare(self, num_rows: int, submit: Submit, announce: Announce | None) -> Guessing:
        """Open the branches, after a forward that tells what the target may say behind the last drafted token."""
        draft = self._proposed
        if draft is None or draft.sequence.num_cached < len(draft.sequence) - 1:
            return
        logits, trunk = draft.logits, draft.sequence
        if not draft.ends_with(self._stop_token_ids):
            trunk = self._fork(trunk, len(trunk))
            logits = [*logits, (yield from logits_of(trunk, 1))]
        if announce is not None:
            position = len(draft.sequence) - len(draft.tokens)
            self._telling = Telling(position, announce)
        rows = self._candidates(torch.cat(logits), draft)
        acceptance = self._acceptance.rate if self._rejects else None
        for num_accepted, token_id in likeliest(rows, draft.token_ids, num_rows, acceptance, self._stop_token_ids):
            self._open((*draft.token_ids[:num_accepted], token_id), trunk, submit)
        if trunk is not draft.sequence:
            # Its pages go to its branches: the last one to write needs no copy.
            self._pool.discard(trunk)

    def _open(self, outcome: Ids, trunk: Sequence, submit: Submit) -> None:
        """Open a branch that drafts behind ``outcome``, if there is a page for it and anything to be drafted."""
        draft, terms = self._proposed, self._coming
        if draft is None or terms is None or not self._pool.num_free:
            return
        length = len(draft.sequence) - len(draft.tokens) + len(outcome)
        if length < self._capacity:
            fork = self._fork(trunk, length - 1)
            fork.append([outcome[-1]])
            branch = Draft(fork, terms)
            if self._telling is not None:
                self._telling.begin(outcome, branch)
            job = submit(self._guess(branch, self._telling))
            self._jobs.append(job)
            self._branches[outcome] = Branch(branch, job)

    def _guess(self, branch: Draft, telling: Telling | None) -> Guessing:
        drafted = False
        try:
            yield from self._extend(branch)
            drafted = True
        finally:
            if telling is not None:
                telling.end(branch, drafted=drafted)

    def _fork(self, trunk: Sequence, length: int) -> Sequence:
        fork = self._pool.fork(trunk, length)
        self._forks.append(fork)
        return fork


def _failed(job: "Future[Any]") -> bool:
    return job.done() and not job.cancelled() and job.exception() is not None
