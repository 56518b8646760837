"""Run-ahead: while the target judges a proposal, draft the next one after each of its likely outcomes.

An outcome is what a verdict commits: some tokens of the proposal, then one of the target's own. A branch is a fork of
the session's sequence that ends with an outcome. It drafts as the session itself would, when no other session needs the
engine. The verdict names at most one branch. The session continues as that branch; all others are closed.

This is exact: a proposal is a function of the committed tokens and of the round's number, and a branch computes the
same function. It uses the randomness of the next round, (seed, round + 1, position, purpose), which nothing before it
has used, and it is used only for the tokens that it was made for. So it does not matter whether a proposal was
prepared, which guesses were made, or what they were made from: a hit saves time and changes no token. A branch that
has not ended is finished, not dropped. Speculative speculative decoding (Kumar, Dao, 2026) draws another proposal on a
miss than on a hit, which is biased above temperature 0.

Once all branches of a proposal are announced, run-ahead prepares the round after the likeliest outcome in the same way.
"""

from collections import deque
from dataclasses import replace

from drafter_svc.run_ahead.branches import Branch, BranchContext, BranchRequest, BranchSet
from drafter_svc.run_ahead.learned import Learned
from drafter_svc.run_ahead.outcomes import AcceptanceRate
from drafter_svc.run_ahead.turns import Turns
from drafter_svc.sources.draft import Draft, DraftLimits
from drafter_svc.sources.source import Announce, Submit
from specgate.runtime.kv_pages import KVSequence
from specgate.types import Ahead, DraftRequest, TokenIds, common_prefix_length

RECENT_ROUNDS = 8
"""A branch is drafted as far as the longest draft of so many rounds."""
MOST_BRANCH_SETS = 2
"""Rounds that are prepared, one after the other. (Why no more: docs/internals/run-ahead.md.)"""
WORTH_LOOKING = 0.3
"""Below this chance of the likeliest outcome the round after it is not prepared: it takes time from the target."""


class RunAhead:
    """One session's branches. Lives on the engine's thread, but for ``start``, and ``was_announced`` between rounds.

    Args:
        learned: learns from what the target chose among these candidates, and from the time of rounds.
    """

    def __init__(self, context: BranchContext, learned: Learned) -> None:
        self._context = context
        self._rejects = context.spec.rejects
        self._acceptance = AcceptanceRate()
        self._sharpness = learned.sharpness
        self._turns = Turns(learned.payoff, learned.clock)
        self._num_rows = 0
        self._proposed: Draft | None = None
        self._gammas: deque[int] = deque(maxlen=RECENT_ROUNDS)
        self._next_limits: DraftLimits | None = None
        self._branch_sets: list[BranchSet] = []
        """That of the last proposal; then each one after the first announced branch of the one before it."""
        self.was_announced = False
        """Whether the last round's proposal was announced. Then nobody waits for the answer, unless the two crossed."""

    def begin(self, sequence: KVSequence, request: DraftRequest, outcome: TokenIds) -> Draft:
        """Begin a round: return the draft that was prepared for what was just committed, or an empty one.

        Args:
            sequence: the session's; it holds the committed tokens and no others.
            outcome: the tokens that were committed since the last round.
        """
        limits = DraftLimits.of(request)
        self._learn(outcome)
        branch_sets, self._branch_sets = self._branch_sets, []
        named, is_announced = None, False
        if branch_sets:
            named = branch_sets[0].named(outcome)
            is_announced = branch_sets[0].announced is not None
            branch_sets[0].close(named)
        num_prepared = len(named.draft.tokens) if named is not None else 0
        draft = self._proposed = self._adopted(sequence, limits, named)
        is_complete = len(draft.tokens) == limits.gamma or draft.ended
        self.was_announced = is_announced and is_complete and len(draft.tokens) > 0
        self._expect(limits, request.prepare)
        stands = self.was_announced and len(draft.tokens) == num_prepared
        self._keep_further(branch_sets[1:], named if stands else None)
        return draft

    def start(self, num_rows: int, submit: Submit, announce: Announce | None = None) -> None:
        """Prepare the likeliest outcomes of the round that began last, ``num_rows`` at the most. On any thread, but on
        the engine's if the round ``was_announced``: then branches of an earlier round may be kept.

        Args:
            announce: sends the proposals once they are there. It is not called in rejection mode, where they are large,
                seldom used, and hold for one round alone. Only if it is given, more than one round is prepared.
        """
        self._num_rows = num_rows
        gamma = self._next_limits.gamma if self._next_limits is not None else 0
        if self._proposed is None or self._next_limits is None or not gamma or not self._turns.guesses:
            return
        if num_rows <= 0:
            self._drop(*self._branch_sets)
            return
        request = self._request(num_rows, submit, None if self._rejects else announce)
        if not self._branch_sets:
            self._open(BranchSet(self._context, self._proposed, self._next_limits), request)
        elif request.announce is not None and self._branch_sets[0].announced is not None:
            self._look_further(request)

    def free(self) -> None:
        """Close all branches, and drop the last draft, whose logits are large."""
        self._drop(*self._branch_sets)
        self._proposed = None

    def _adopted(self, sequence: KVSequence, limits: DraftLimits, named: Branch | None) -> Draft:
        """Let the session continue as the named branch; return what of its draft fits the round."""
        if named is None:
            return Draft(sequence, limits)
        self._context.pool.adopt(sequence, named.draft.sequence)
        draft = replace(named.draft, sequence=sequence, limits=limits)
        draft.cut(limits.gamma if self._fits(named.draft.limits, limits) else 0)
        return draft

    def _fits(self, prepared: DraftLimits, asked: DraftLimits) -> bool:
        """Return whether a prepared draft is what would be drafted now, but for its length."""
        return prepared.stop_below == asked.stop_below and (not self._rejects or prepared.round == asked.round)

    def _learn(self, outcome: TokenIds) -> None:
        if self._proposed is None or not (self._proposed.tokens and outcome):
            self._turns.interrupt()
            return
        drafted = self._proposed.token_ids
        num_accepted = common_prefix_length(drafted, outcome)
        self._acceptance.learn(len(drafted), num_accepted)
        if len(outcome) > num_accepted + 1:
            self._turns.interrupt()
        if not self._rejects and self._branch_sets:
            for row, token_id in zip(self._branch_sets[0].rows, outcome[: num_accepted + 1], strict=False):
                self._sharpness.learn(row, token_id)

    def _expect(self, limits: DraftLimits, prepare: int) -> None:
        """Set the limits of the next round's draft."""
        if limits.gamma:
            # γ may change from round to round: a draft that is too long is cut, one that is too short is waited for.
            self._gammas.append(limits.gamma)
            if self._num_rows:
                # Holds for the solo tokens that follow, too.
                self._turns.next(limits.gamma, self._num_rows)
        if limits.gamma or (prepare and self._next_limits is None):
            # A round that asks for nothing says nothing of how the next draft ends.
            self._next_limits = limits
        if self._next_limits is not None:
            gamma = prepare or max(self._gammas, default=0)
            self._next_limits = self._next_limits._replace(round=limits.round + 1, gamma=gamma)

    def _keep_further(self, further: list[BranchSet], named: Branch | None) -> None:
        """Keep what is prepared further ahead if it follows the branch that came true, as a whole."""
        for branches in further:
            stands = named is not None and branches.proposed is named.draft and branches.limits == self._next_limits
            if stands and branches.is_alive and self._turns.guesses and self._proposed is not None:
                branches.proposed, branches.assumed = self._proposed, ()
                self._branch_sets.append(branches)
            else:
                self._drop(branches)

    def _drop(self, *branch_sets: BranchSet) -> None:
        self._branch_sets = [branches for branches in self._branch_sets if branches not in branch_sets]
        for branches in branch_sets:
            branches.close()

    def _open(self, branches: BranchSet, request: BranchRequest) -> None:
        self._branch_sets.append(branches)
        branches.open(request)

    def _request(self, num_rows: int, submit: Submit, announce: Announce | None) -> BranchRequest:
        acceptance = self._acceptance.rate if self._rejects else None
        if announce is None:
            return BranchRequest(num_rows, submit, None, acceptance)

        def announce_and_look_further(ahead: Ahead) -> None:
            announce(ahead)
            self._look_further(request)

        request = BranchRequest(num_rows, submit, announce_and_look_further, acceptance)
        return request

    def _look_further(self, request: BranchRequest) -> None:
        """Once all prepared proposals are announced, prepare the round after the likeliest branch of the last set."""
        if not self._branch_sets or len(self._branch_sets) == MOST_BRANCH_SETS:
            return
        last = self._branch_sets[-1]
        outcome = last.announced or ()
        branch = last.named(outcome)
        # While the target decodes alone, one round is enough: the one after it is seldom used.
        if branch is None or not last.proposed.tokens:
            return
        if branch.chance >= WORTH_LOOKING:
            limits = last.limits._replace(round=last.limits.round + 1)
            self._open(BranchSet(self._context, branch.draft, limits, last.assumed + outcome), request)
