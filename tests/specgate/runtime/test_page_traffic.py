"""Random sessions over pages that are far too few, against a model of what every row of every page holds.

A row's contents stand for everything it was computed from: the tokens up to it, and the salt. So a page that is
shared, copied, overwritten or given away wrongly shows as a row that its reader did not mean.
"""

from contextlib import suppress

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from specgate.errors import KVCacheFull
from specgate.runtime.kv_pages import KVSequence, PagePool
from specgate.runtime.scheduler import PATIENCE_PLANS, ForwardRequest, Limits, Scheduler

NUM_PAGES, PAGE_SIZE, MAX_LENGTH = 8, 24, 80
Row = tuple[str, tuple[int, ...]]


class Traffic(RuleBasedStateMachine):
    """Sessions that open, decode, judge drafts, branch, wait, are robbed of their pages, and end at any point."""

    num_lives = 0

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES, PAGE_SIZE)
        self.scheduler = Scheduler(self.pool, Limits(max_batch_tokens=48, prefill_chunk=16, lone_chunk=24))
        self.rows: dict[tuple[int, int], Row] = {}
        self.waiting: list[ForwardRequest] = []
        self.num_drafts: dict[int, int] = {}
        self.num_stalls = 0

    @property
    def open_ones(self) -> list[KVSequence]:
        return list(self.pool.sequences.values())

    @property
    def branches(self) -> list[KVSequence]:
        return [one for one in self.open_ones if one.is_branch]

    def _pick(self, data: st.DataObject) -> KVSequence:
        return data.draw(st.sampled_from(self.open_ones))

    def _is_waiting(self, sequence: KVSequence) -> bool:
        return any(need.sequence is sequence for need in self.waiting)

    @rule(length=st.integers(1, 60), twist=st.integers(0, 3), salt=st.sampled_from(["", "", "", "other"]))
    def open(self, length: int, twist: int, salt: str) -> None:
        """Prompts that share prefixes of every length: they differ from one place on."""
        ids = [0] * (length * twist // 3) + [twist] * (length - length * twist // 3)
        with suppress(KVCacheFull):
            sequence = self.pool.open(ids, MAX_LENGTH, salt)
            type(self).num_lives += 1
            if length > 1:
                self.waiting.append(ForwardRequest(sequence, 0, length - 1))

    @precondition(lambda self: self.pool.sequences)
    @rule(data=st.data(), drafts=st.lists(st.integers(0, 1), max_size=12), judged=st.booleans())
    def ask(self, data: st.DataObject, drafts: list[int], judged: bool) -> None:
        """Append drafts, if there is room, and need logits: of all of them as a verifier, or of the last one."""
        sequence = self._pick(data)
        if not self._is_waiting(sequence) and len(sequence) + len(drafts) < MAX_LENGTH:
            sequence.append(drafts)
            self.num_drafts[sequence.serial] = len(drafts)
            num_logits = len(drafts) + 1 if judged else 1
            sequence.num_cached = min(sequence.num_cached, len(sequence) - num_logits)
            self.waiting.append(ForwardRequest(sequence, num_logits, len(sequence)))

    @rule()
    def forward(self) -> None:
        """One step of an engine: copies, then every row is written and every row before it read."""
        # A branch that there are no pages for is closed.
        self.waiting = [need for need in self.waiting if self.pool.is_open(need.sequence)]
        plan = self.scheduler.plan(self.waiting)
        self.num_stalls = 0 if plan or not self.waiting else self.num_stalls + 1
        assert self.num_stalls < PATIENCE_PLANS, "everybody waits for pages and nobody gets any"
        for source, target, first, end in self.pool.take_copies():
            for row in range(first, end):
                self.rows[target, row] = self.rows[source, row]
        for sequence, num_rows, _ in plan.values():
            for position in range(sequence.num_cached, sequence.num_cached + num_rows):
                self.rows[self._place(sequence, position)] = self._meant(sequence, position)
        for sequence, num_rows, _ in plan.values():
            sequence.num_cached += num_rows
            self.pool.remember(sequence)
        for sequence in self.open_ones:
            for position in range(sequence.num_cached):
                assert self.rows[self._place(sequence, position)] == self._meant(sequence, position)
        for need in [need for need in self.waiting if need.sequence.num_cached >= need.length]:
            self.waiting.remove(need)
            self._commit(need.sequence)

    @staticmethod
    def _place(sequence: KVSequence, position: int) -> tuple[int, int]:
        return sequence.block_table[position // PAGE_SIZE], position % PAGE_SIZE

    @staticmethod
    def _meant(sequence: KVSequence, position: int) -> Row:
        return sequence.salt, tuple(sequence.token_ids[: position + 1])

    def _commit(self, sequence: KVSequence) -> None:
        """As a verifier does: cut back to what was accepted, add one token of its own."""
        num_drafts = self.num_drafts.pop(sequence.serial, None)
        if num_drafts is None:
            return
        sequence.truncate(len(sequence) - num_drafts + num_drafts // 2)
        if len(sequence) < MAX_LENGTH:
            sequence.append([2])
        if sequence.num_stable:
            sequence.mark_stable(len(sequence))

    @precondition(lambda self: self.pool.sequences)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        trunk = self._pick(data)
        if len(self.open_ones) < 8 and not self._is_waiting(trunk):
            self.pool.fork(trunk)
            type(self).num_lives += 1

    @precondition(lambda self: self.branches)
    @rule(data=st.data())
    def adopt(self, data: st.DataObject) -> None:
        """A guess came true: its trunk, or any other that is long enough to be one, goes on as it."""
        branch = data.draw(st.sampled_from(self.branches))
        trunks = [one for one in self.open_ones if one.salt == branch.salt and not one.is_branch]
        trunks = [one for one in trunks if one.token_ids[: one.num_stable] == branch.token_ids[: one.num_stable]]
        if trunks:
            trunk = data.draw(st.sampled_from(trunks))
            self.waiting = [need for need in self.waiting if need.sequence not in (trunk, branch)]
            self.num_drafts.pop(trunk.serial, None)
            self.pool.adopt(trunk, branch)

    @precondition(lambda self: self.branches)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        self.pool.discard(data.draw(st.sampled_from(self.branches)))

    @precondition(lambda self: self.pool.sequences)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """The client leaves, whatever its session is doing."""
        sequence = self._pick(data)
        self.waiting = [need for need in self.waiting if need.sequence is not sequence]
        self.pool.free(sequence)

    @precondition(lambda self: self.pool.sequences)
    @rule(data=st.data(), poisoned=st.booleans())
    def preempt(self, data: st.DataObject, poisoned: bool) -> None:
        self.pool.release(self._pick(data), poisoned=poisoned)

    @invariant()
    def every_page_is_in_one_place(self) -> None:
        self.pool.check_integrity()

    def teardown(self) -> None:
        for _ in range((PATIENCE_PLANS + MAX_LENGTH) * len(self.waiting)):
            if self.waiting:
                self.forward()
        assert not self.waiting, "somebody never got on"
        for sequence in self.open_ones:
            self.pool.free(sequence)
        assert self.pool.num_free == NUM_PAGES
        self.pool.check_integrity()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("examples", "lives"),
    [pytest.param(150, 400, id="quick"), pytest.param(1000, 2000, marks=pytest.mark.slow, id="many")],
)
def test_random_sessions_leak_nothing_and_read_what_they_mean(examples: int, lives: int) -> None:
    Traffic.num_lives = 0
    Traffic.TestCase.settings = settings(
        max_examples=examples,
        stateful_step_count=60,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    Traffic.TestCase("runTest").runTest()
    assert Traffic.num_lives >= lives
