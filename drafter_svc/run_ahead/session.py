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

Where the drafter has told all of that, it goes on behind the likeliest outcome: as if that had come true, it prepares
the round after it.
"""

from collections import deque
from dataclasses import replace

from drafter_svc.run_ahead.branches import Branch, BranchSet, Drafting, Order, Submit, Tools
from drafter_svc.run_ahead.outcomes import AcceptanceRate
from drafter_svc.run_ahead.payoff import Payoff
from drafter_svc.run_ahead.sharpness import Sharpness
from drafter_svc.sources.model import Draft, Terms
from drafter_svc.sources.source import Announce
from specgate.runtime.kv_pages import KVSequence, PagePool
from specgate.types import Announcement, DraftRequest, SessionSpec, TokenIds, common_prefix_length

RECENT_ROUNDS = 8
"""Rounds whose longest draft says how far a branch is drafted."""
MOST_BRANCH_SETS = 2
"""Rounds that are prepared, one behind the other. (Why no more: docs/internals/run-ahead.md.)"""
WORTH_LOOKING = 0.3
"""The chance of the likeliest outcome, below which the round behind it is left alone: it takes time from the target."""


class RunAhead:
    """One session's branches. Lives on the engine's thread, but for ``start``, and ``was_announced`` between rounds.

    Args:
        capacity: of the session's sequence, in tokens.
        drafting: how the session drafts, and what it thinks of the target.
        sharpness: learns from what the target took of these candidates.
    """

    def __init__(
        self,
        spec: SessionSpec,
        pool: PagePool,
        capacity: int,
        drafting: Drafting,
        sharpness: Sharpness,
    ) -> None:
        self._rejects = spec.rejects
        self._acceptance = AcceptanceRate()
        self._sharpness = sharpness
        self._account = Payoff()
        self._is_guessing = True
        self._pool = pool
        acceptance = self._acceptance if spec.rejects else None
        self._tools = Tools(pool, capacity, drafting, spec.stop_token_ids, acceptance)
        self._proposed: Draft | None = None
        self._gammas: deque[int] = deque(maxlen=RECENT_ROUNDS)
        self._coming: Terms | None = None
        self._branch_sets: list[BranchSet] = []
        """Behind what was proposed last; then each behind the branch of the one before that was told first."""
        self.was_announced = False
        """Whether the last round's proposal was: then nobody waits for the answer, unless the two crossed."""

    def begin(self, sequence: KVSequence, request: DraftRequest, outcome: TokenIds) -> Draft:
        """Begin a round: return the draft that was prepared for what was just committed, or an empty one.

        Args:
            sequence: the session's, which holds the committed tokens and no others.
            outcome: the tokens that were committed since the last round.
        """
        terms = Terms.of(request)
        self._learn(outcome)
        branch_sets, self._branch_sets = self._branch_sets, []
        named = branch_sets[0].named(outcome) if branch_sets else None
        is_announced, is_busy = (
            bool(branch_sets) and branch_sets[0].announced is not None,
            any(branches.is_busy for branches in branch_sets),
        )
        if branch_sets:
            branch_sets[0].close(named)
        num_prepared = len(named.draft.tokens) if named is not None else 0
        draft = self._proposed = self._adopted(sequence, terms, named)
        if branch_sets and terms.gamma:
            self._account.enter(saved=len(draft.tokens), waited=is_busy and named is None)
        is_complete = len(draft.tokens) == terms.gamma or draft.ended
        self.was_announced = is_announced and is_complete and len(draft.tokens) > 0
        self._expect(terms, request.prepare)
        stands = self.was_announced and len(draft.tokens) == num_prepared
        self._go_on_with(branch_sets[1:], named if stands else None)
        return draft

    def start(self, num_rows: int, submit: Submit, announce: Announce | None = None) -> None:
        """Prepare the likeliest outcomes of the round that was just begun, ``num_rows`` at the most. On any thread, but
        on the engine's where it ``was_announced``: then something may be kept from before.

        Args:
            announce: told of the proposals once they are there; not in rejection mode, where they are large,
                seldom asked for, and hold for one round alone. Only where it is told, more than a round is prepared.
        """
        if not (self._proposed is not None and self._coming is not None and self._coming.gamma and self._is_guessing):
            return
        if num_rows <= 0:
            self._drop(*self._branch_sets)
            return
        order = self._order(num_rows, submit, None if self._rejects else announce)
        if not self._branch_sets:
            self._open(BranchSet(self._tools, self._proposed, self._coming), order)
        elif order.announce is not None and self._branch_sets[0].announced is not None:
            self._look_further(order)

    def free(self) -> None:
        """Close all branches, and let go of the last draft: its logits are as large as anything that a session has."""
        self._drop(*self._branch_sets)
        self._proposed = None

    def _adopted(self, sequence: KVSequence, terms: Terms, named: Branch | None) -> Draft:
        """Let the session go on as the branch that came true; return what of its draft fits the round."""
        if named is None:
            return Draft(sequence, terms)
        self._pool.adopt(sequence, named.draft.sequence)
        draft = replace(named.draft, sequence=sequence, terms=terms)
        draft.cut(terms.gamma if self._fits(named.draft.terms, terms) else 0)
        return draft

    def _fits(self, prepared: Terms, asked: Terms) -> bool:
        """Return whether a prepared draft is what would be drafted now, but for its length."""
        return prepared.stop_below == asked.stop_below and (not self._rejects or prepared.round == asked.round)

    def _learn(self, outcome: TokenIds) -> None:
        if self._proposed is None or not (self._proposed.tokens and outcome):
            return
        drafted = self._proposed.token_ids
        num_accepted = common_prefix_length(drafted, outcome)
        self._acceptance.learn(len(drafted), num_accepted)
        if not self._rejects and self._branch_sets:
            for row, token_id in zip(self._branch_sets[0].rows, outcome[: num_accepted + 1], strict=False):
                self._sharpness.learn(row, token_id)

    def _expect(self, terms: Terms, prepare: int) -> None:
        """Say on which terms the next round will be drafted."""
        if terms.gamma:
            # For a gate that changes its mind: a draft that is too long is cut, one that is too short is waited for.
            self._gammas.append(terms.gamma)
        if terms.gamma or prepare:
            if terms.gamma or self._coming is None:
                # A round that asks for nothing says nothing of how the next draft ends.
                self._coming = terms
            # Holds for the solo tokens that follow, too: only rounds with a draft tell what guessing brought.
            self._is_guessing = self._account.pays()
        if self._coming is not None:
            self._coming = self._coming._replace(round=terms.round + 1, gamma=prepare or max(self._gammas, default=0))

    def _go_on_with(self, further: list[BranchSet], named: Branch | None) -> None:
        """Keep what is prepared further ahead, if it stands behind the branch that came true, as a whole."""
        for branches in further:
            stands = named is not None and branches.proposed is named.draft and branches.terms == self._coming
            if stands and branches.is_alive and self._is_guessing and self._proposed is not None:
                branches.proposed, branches.assumed = self._proposed, ()
                self._branch_sets.append(branches)
            else:
                self._drop(branches)

    def _drop(self, *branch_sets: BranchSet) -> None:
        self._branch_sets = [branches for branches in self._branch_sets if branches not in branch_sets]
        for branches in branch_sets:
            branches.close()

    def _open(self, branches: BranchSet, order: Order) -> None:
        self._branch_sets.append(branches)
        branches.open(order)

    def _order(self, num_rows: int, submit: Submit, announce: Announce | None) -> Order:
        if announce is None:
            return Order(num_rows, submit, None)

        def tell(announcement: Announcement) -> None:
            announce(announcement)
            self._look_further(order)

        order = Order(num_rows, submit, tell)
        return order

    def _look_further(self, order: Order) -> None:
        """Where all is told that was prepared, prepare the round behind the likeliest branch of the last one."""
        if not self._branch_sets or len(self._branch_sets) == MOST_BRANCH_SETS:
            return
        last = self._branch_sets[-1]
        outcome = last.announced or ()
        branch = last.named(outcome)
        # While the target decodes alone, the next round is enough: what is behind that is seldom asked for.
        if branch is None or not last.proposed.tokens:
            return
        if branch.chance >= WORTH_LOOKING:
            terms = last.terms._replace(round=last.terms.round + 1)
            self._open(BranchSet(self._tools, branch.draft, terms, last.assumed + outcome), order)
