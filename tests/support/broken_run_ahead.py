"""Drafting sessions whose run-ahead is wrong: what the tests of exactness must find out."""

from typing import Any

from drafter_svc.drafter import DraftSession
from drafter_svc.run_ahead.branches import BranchContext
from drafter_svc.run_ahead.session import RunAhead
from drafter_svc.sources.draft import Draft, DraftLimits
from specgate.runtime.kv_pages import KVSequence
from specgate.types import DraftMethod, DraftRequest, TokenIds


class WithAhead(DraftSession):
    """A session with a broken run-ahead."""

    ahead_type: type[RunAhead] = RunAhead

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        context = BranchContext(self.spec, self._pool, self.capacity, self.extend, self._candidates, DraftMethod.MODEL)
        self.ahead = self.ahead_type(context, self.sharpness)


class AdoptsAnother(WithAhead):
    """Goes on with whatever branch there is, as if its outcome had come true."""

    class ahead_type(RunAhead):
        def begin(self, sequence: KVSequence, request: DraftRequest, outcome: TokenIds) -> Draft:
            for branches in (branches.branches for branches in self._branch_sets[:1]):
                alike = [one for one in branches if len(one) == len(outcome)]
                if outcome not in branches and alike:
                    branches[outcome] = branches[alike[0]]
            return super().begin(sequence, request, outcome)


class KeepsWrongKeys(WithAhead):
    """Takes the tokens of the right branch and the keys and values of another one."""

    class ahead_type(RunAhead):
        def begin(self, sequence: KVSequence, request: DraftRequest, outcome: TokenIds) -> Draft:
            for branches in (branches.branches for branches in self._branch_sets[:1]):
                alike = [one for one in branches if len(one) == len(outcome) and one != outcome]
                if outcome in branches and alike:
                    right, wrong = (branches[one].draft.sequence for one in (outcome, alike[0]))
                    right.block_table, wrong.block_table = wrong.block_table, right.block_table
            return super().begin(sequence, request, outcome)


class GoesOnBehindAnother(WithAhead):
    """Keeps what was prepared behind the likeliest branch, whichever one came true."""

    class ahead_type(RunAhead):
        def begin(self, sequence: KVSequence, request: DraftRequest, outcome: TokenIds) -> Draft:
            further, self._branch_sets = self._branch_sets[1:], self._branch_sets[:1]
            draft = super().begin(sequence, request, outcome)
            for branches in further:
                branches.proposed, branches.assumed = draft, ()
                self._branch_sets.append(branches)
            return draft


class ReusesTheKey(WithAhead):
    """Prepares with this round's randomness what the next one proposes."""

    class ahead_type(RunAhead):
        def start(self, num_rows: int, submit: Any, announce: Any = None) -> None:
            if self._next_limits is not None:
                self._next_limits = self._next_limits._replace(round=self._next_limits.round - 1)
            super().start(num_rows, submit, announce)

        def _fits(self, prepared: DraftLimits, asked: DraftLimits) -> bool:
            return True
