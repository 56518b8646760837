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

from collections.abc import Callable, Generator
from collections.abc import Sequence as List
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from drafter_svc.draft import Draft, Terms
from drafter_svc.outcomes import Outcomes
from specgate.runtime.kv_pages import PagePool, Sequence
from specgate.runtime.scheduler import Need, logits_of
from specgate.types import SessionSpec, Verification

Ids = tuple[int, ...]
Guessing = Generator[Need, torch.Tensor, None]
Submit = Callable[[Guessing], "Future[Any]"]
"""Queues a task on the engine, from any thread."""
Extend = Callable[[Draft], Guessing]
"""Drafts on, to the draft's own terms."""
Rank = Callable[[torch.Tensor, Draft, int], list[list[int]]]
"""Candidates for the target's own token at the positions of these logits, the first one after so many draft tokens."""


class Branch(NamedTuple):
    """A draft behind a guessed outcome, and the job that makes it."""

    draft: Draft
    job: "Future[Any]"


class RunAhead:
    """One session's branches. Lives on the engine's thread, but for ``start``.

    Args:
        capacity: of the session's sequence, in tokens.
        extend, rank: how the session drafts, and what it would rather have drafted.
    """

    def __init__(self, spec: SessionSpec, pool: PagePool, capacity: int, extend: Extend, rank: Rank) -> None:
        self._keyed_by_round = spec.verification is Verification.REJECTION and not spec.sampling.greedy
        self.outcomes = Outcomes(Verification.REJECTION if self._keyed_by_round else Verification.SHARED_NOISE)
        self._stop_token_ids = spec.stop_token_ids
        self._pool = pool
        self._capacity = capacity
        self._extend = extend
        self._rank = rank
        self._proposed: Draft | None = None
        self._coming: Terms | None = None
        self._branches: dict[Ids, Branch] = {}
        self._forks: list[Sequence] = []
        self._jobs: list[Future[Any]] = []
        self._ranked: dict[int, list[int]] = {}

    def begin(self, sequence: Sequence, terms: Terms, outcome: Ids) -> Draft:
        """Begin a round: return the draft that was prepared for what was just committed, or an empty one.

        Args:
            sequence: the session's, which holds the committed tokens and no others.
            outcome: the tokens that were committed since the last round.
        """
        self._learn(outcome)
        prepared = self._close_all_but(outcome)
        draft = Draft(sequence, terms)
        if prepared is not None:
            self._pool.adopt(sequence, prepared.sequence)
            draft = replace(prepared, sequence=sequence, terms=terms)
            draft.cut(terms.gamma if self._fits(prepared.terms, terms) else 0)
        self._proposed = draft
        if terms.gamma:
            self._coming = terms
        if self._coming is not None:
            self._coming = self._coming._replace(round=terms.round + 1)
        return draft

    def start(self, num_rows: int, submit: Submit) -> None:
        """Prepare the likeliest outcomes of the round that was just begun, ``num_rows`` at the most. On any thread."""
        if num_rows > 0 and self._coming is not None:
            self._jobs.append(submit(self._prepare(num_rows, submit)))

    def free(self) -> None:
        """Close all branches."""
        self._close_all_but(None)

    def _fits(self, prepared: Terms, asked: Terms) -> bool:
        """Return whether a prepared draft is what would be drafted now, but for its length."""
        return prepared.stop_below == asked.stop_below and (
            not self._keyed_by_round or prepared.round == asked.round
        )

    def _close_all_but(self, outcome: Ids | None) -> Draft | None:
        named = self._branches.get(outcome) if outcome is not None else None
        if named is not None and (not self._pool.is_open(named.draft.sequence) or _failed(named.job)):
            named = None
        for job in self._jobs:
            job.cancel()
        for fork in self._forks:
            if named is None or fork is not named.draft.sequence:
                self._pool.discard(fork)
        self._branches, self._forks, self._jobs, self._ranked = {}, [], [], {}
        return named.draft if named is not None else None

    def _learn(self, outcome: Ids) -> None:
        if self._proposed is None or not outcome:
            return
        drafted, num_accepted = self._proposed.token_ids, 0
        while num_accepted < min(len(drafted), len(outcome)) and drafted[num_accepted] == outcome[num_accepted]:
            num_accepted += 1
        if drafted:
            self.outcomes.learn(len(drafted), num_accepted)
        if num_accepted in self._ranked and num_accepted < len(outcome):
            ranked, own = self._ranked[num_accepted], outcome[num_accepted]
            rank = ranked.index(own) if own in ranked else None
            self.outcomes.learn_rank(bonus=num_accepted == len(drafted), rank=rank)

    def _prepare(self, num_rows: int, submit: Submit) -> Guessing:
        """Open a branch for each guess. What the bonus token may be takes a forward more to guess."""
        draft = self._proposed
        if draft is None or draft.sequence.num_cached < len(draft.sequence) - 1:
            return
        num_drafted = len(draft.tokens)
        ranks: dict[int, list[int]] = {}
        for num_accepted, rank in self.outcomes.likeliest(num_drafted, min(num_rows, self._pool.num_free)):
            ranks.setdefault(num_accepted, []).append(rank)
        bonus = ranks.pop(num_drafted, [])
        if ranks:
            self._ranked.update(enumerate(self._rank(torch.cat(draft.logits), draft, 0)))
            for num_accepted, of_it in ranks.items():
                self._open(draft.sequence, draft.token_ids[:num_accepted], of_it, submit)
        if bonus and not draft.ends_with(self._stop_token_ids) and len(draft.sequence) + 1 < self._capacity:
            scout = self._fork(draft.sequence, len(draft.sequence))
            logits = yield from logits_of(scout, 1)
            (self._ranked[num_drafted],) = self._rank(logits, draft, num_drafted)
            self._open(scout, draft.token_ids, bonus, submit)
            # Its page goes to the branches: the last of them to write needs no copy.
            self._pool.discard(scout)

    def _open(self, trunk: Sequence, accepted: List[int], ranks: List[int], submit: Submit) -> None:
        """Open the branches behind ``accepted`` and each of the own tokens of these ranks."""
        start = len(self._proposed.sequence) - len(self._proposed.tokens)
        length = start + len(accepted)
        if length + 1 >= self._capacity or self._coming is None:
            return
        candidates = self._ranked[len(accepted)]
        for own in (candidates[rank] for rank in ranks if rank < len(candidates)):
            if own in self._stop_token_ids:
                continue
            fork = self._fork(trunk, length)
            fork.append([own])
            branch = Draft(fork, self._coming)
            job = submit(self._extend(branch))
            self._jobs.append(job)
            self._branches[(*accepted, own)] = Branch(branch, job)

    def _fork(self, trunk: Sequence, length: int) -> Sequence:
        fork = self._pool.fork(trunk, length)
        self._forks.append(fork)
        return fork


def _failed(job: "Future[Any]") -> bool:
    return job.done() and not job.cancelled() and job.exception() is not None
