"""What runs in the next forward: pure decisions over needs and pages, no torch.

Every sequence that decodes is in every forward. Prompts fill the rest, a chunk at a time, so that a long prompt delays
others by one chunk at most; several prompts take turns. A sequence without pages takes them from a younger sequence, or
from one whose client is silent. That one is computed anew from its tokens later.

Branches are guesses. They run on free pages when no other sequence is ready. A branch is closed where no page is free,
or where another sequence needs its pages.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from specgate.runtime.kv_pages import KVSequence, PagePool

if TYPE_CHECKING:
    import torch

    from specgate.runtime.sampling_step import ForwardResult, SamplingStep

DECODE_ROWS = 32
"""A sequence with no more uncached tokens than this decodes, as does one that needs the logits of all of them; any
other one is a prompt."""
PATIENCE_PLANS = 32
"""How long a sequence that waits for its client keeps its pages from younger ones. A round trip to the client takes a
few plans: two sequences that took each other's pages between rounds would compute everything anew in every round."""


class ForwardRequest(NamedTuple):
    """What a task yields: its first ``length`` tokens cached, and the logits of the last ``num_logits`` of them.

    Attributes:
        sample: how a token is sampled in each of those rows; the engine does it for all tasks of a step at once.
        most_steps: how many tokens may be sampled in a row, each from the logits of the one before, if the engine can.
            All but the last one are then the sequence's, and the result has a row for each.
        is_prompt: it takes turns with prompts, however few its rows are.
    """

    sequence: KVSequence
    num_logits: int
    length: int
    sample: "SamplingStep | None" = None
    most_steps: int = 1
    is_prompt: bool = False


class Rows(NamedTuple):
    """One sequence's part of a forward: its next ``num_rows`` uncached tokens, logits of the last ``num_logits``."""

    sequence: KVSequence
    num_rows: int
    num_logits: int


def forward(
    sequence: KVSequence, num_logits: int, sample: "SamplingStep | None" = None, most_steps: int = 1
) -> "Generator[ForwardRequest, ForwardResult, ForwardResult]":
    """Cache every token; return the logits of the last ``num_logits`` tokens, and what was sampled in these rows.

    Tokens whose logits are wanted are run again if they are cached. ``most_steps`` as of ``ForwardRequest``.
    """
    sequence.num_cached = min(sequence.num_cached, len(sequence) - num_logits)
    return (yield ForwardRequest(sequence, num_logits, len(sequence), sample, most_steps))


def logits_of(sequence: KVSequence, num_logits: int) -> "Generator[ForwardRequest, ForwardResult, torch.Tensor]":
    """Cache every token; return the logits of the last ``num_logits`` tokens, [num_logits, vocabulary]."""
    return (yield from forward(sequence, num_logits)).logits


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one forward.

    Attributes:
        max_batch_tokens: rows at the most; the rows of a single sequence that need logits always fit.
        prefill_chunk: rows of prompts while others decode or are about to. They bound how long a token waits.
        lone_chunk: rows of prompts while there are only prompts.
    """

    max_batch_tokens: int = 2048
    prefill_chunk: int = 512
    lone_chunk: int = 512


class Scheduler:
    """Plans forwards over the sequences of ``pool``."""

    def __init__(self, pool: PagePool, limits: Limits) -> None:
        self._pool = pool
        self._limits = limits
        self._num_plans = 0

    def plan(self, needs: Sequence[ForwardRequest]) -> dict[int, Rows]:
        """Return the rows of the needs that run now, by their index. Of equals the first come first.

        Nothing runs where all wait for pages that older sequences, which wait for their clients, still keep.
        """
        ordinary = [i for i, need in enumerate(needs) if not need.sequence.is_branch]
        if not ordinary:
            return self._plan_branches(needs)
        self._num_plans += 1
        for need in (needs[i] for i in ordinary):
            need.sequence.last_plan = self._num_plans
            self._pool.attach(need.sequence, need.length - max(1, need.num_logits))
        prompts = [i for i in ordinary if not _decodes(needs[i])]
        decoding = [i for i in ordinary if _decodes(needs[i])]
        limits, step = self._limits, _Step(self._pool, needs, self._num_plans - PATIENCE_PLANS)
        # However many decode, prompts get their share.
        step.fill(decoding, limits.max_batch_tokens - (limits.prefill_chunk if prompts else 0))
        step.fill_in_chunks(prompts, limits.prefill_chunk if step.chosen or self._is_awaited() else limits.lone_chunk)
        return step.chosen

    def _plan_branches(self, needs: Sequence[ForwardRequest]) -> dict[int, Rows]:
        """Run the branches that free pages suffice for. These plans do not count against a waiting sequence."""
        chosen: dict[int, Rows] = {}
        budget = self._limits.max_batch_tokens
        for index, need in enumerate(needs):
            pending = _pending(need)
            if chosen and pending > budget:
                break
            if self._pool.extend(need.sequence, need.length):
                chosen[index] = Rows(need.sequence, pending, need.num_logits)
                budget -= pending
            else:
                self._pool.discard(need.sequence)
        return chosen

    def _is_awaited(self) -> bool:
        """Return whether a sequence waits for its client, and may be back before a chunk has run."""
        now = self._num_plans
        return any(now - PATIENCE_PLANS < one.last_plan < now for one in self._pool.snapshot())


class _Step:
    """One forward as it is put together."""

    def __init__(self, pool: PagePool, needs: Sequence[ForwardRequest], long_ago: int) -> None:
        self.chosen: dict[int, Rows] = {}
        self._preempted: list[KVSequence] = []
        self._pool = pool
        self._needs = needs
        self._index_of = {need.sequence.serial: index for index, need in enumerate(needs)}
        self._long_ago = long_ago

    def fill(self, indices: Sequence[int], budget: int) -> None:
        for index in indices:
            if self._lost_its_pages(index):
                continue
            pending = _pending(self._needs[index])
            if self.chosen and pending > budget:
                return
            if self._choose(index, pending):
                budget -= pending

    def fill_in_chunks(self, indices: Sequence[int], budget: int) -> None:
        for index in indices:
            if budget <= 0:
                return
            if self._lost_its_pages(index):
                continue
            chunk = _chunk(self._needs[index], budget)
            if self._choose(index, chunk):
                budget -= chunk

    def _lost_its_pages(self, index: int) -> bool:
        """Return whether another need took its pages in this plan: it waits for the next plan, where it is a prompt."""
        return self._needs[index].sequence in self._preempted

    def _choose(self, index: int, num_rows: int) -> bool:
        need = self._needs[index]
        sequence = need.sequence
        end = sequence.num_cached + num_rows
        if not self._make_room(need, end):
            return False
        self.chosen[index] = Rows(sequence, num_rows, need.num_logits if end == need.length else 0)
        return True

    def _make_room(self, need: ForwardRequest, length: int) -> bool:
        """Get pages for ``length`` tokens, from others where none are free. False: it waits for another forward.

        No page is taken for a sequence that could not get all that it needs: neither it nor the victims would run.
        """
        sequence = need.sequence
        if self._pool.extend(sequence, length):
            return True
        victims = self._victims(sequence)
        if not self._pool.could_extend(sequence, need.length, victims):
            return False
        while not self._pool.extend(sequence, length):
            self._preempt(victims.pop())
        return True

    def _preempt(self, victim: KVSequence) -> None:
        if victim.is_branch:
            self._pool.discard(victim)
            return
        self._pool.release(victim)
        self._preempted.append(victim)
        self.chosen.pop(self._index_of.get(victim.serial, -1), None)

    def _victims(self, sequence: KVSequence) -> list[KVSequence]:
        """Return the sequences whose pages may be taken; the last one loses them first.

        Branches come first, then sequences that wait long for their clients, then younger ones that wait for their
        clients, then other younger ones. Of equals the youngest loses first, so the oldest always gets on.
        """
        others = [one for one in self._pool.snapshot() if one.block_table and one is not sequence]
        ranks = [(self._rank(one, sequence), one) for one in others]
        # Sorted by rank alone: of equals the youngest stays last.
        return [one for rank, one in sorted(ranks, key=lambda item: item[0]) if rank >= 0]

    def _rank(self, one: KVSequence, asking: KVSequence) -> int:
        """Return a higher number for a sequence that loses its pages sooner; -1: it keeps them."""
        if one.is_branch:
            return 3
        if one.last_plan <= self._long_ago:
            return 2
        if one.serial < asking.serial:
            return -1
        return 0 if one.serial in self._index_of else 1


def _decodes(need: ForwardRequest) -> bool:
    return not need.is_prompt and _pending(need) <= max(DECODE_ROWS, need.num_logits)


def _pending(need: ForwardRequest) -> int:
    return need.length - need.sequence.num_cached


def _chunk(need: ForwardRequest, budget: int) -> int:
    """Return how many rows to run of a prompt; the rows whose logits are needed are never cut apart."""
    pending = _pending(need)
    if pending <= budget:
        return pending
    return min(budget, pending - need.num_logits) or pending
