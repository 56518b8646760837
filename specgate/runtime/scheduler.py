"""What runs in the next forward: pure decisions over needs and pages, no torch.

Every sequence that decodes is in every forward. Prompts fill the rest, a chunk at a time, so that a long one holds
nobody up for longer than one chunk; several of them take turns. A sequence for which there are no pages takes them
from another one, which is rebuilt from its tokens later.
"""

from collections.abc import Generator
from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from specgate.runtime.kv_pages import PagePool, Sequence

L = TypeVar("L")
DECODE_ROWS = 32
"""A sequence with no more uncached tokens than this decodes; one with more is a prompt."""


class Need(NamedTuple):
    """What a task yields: its first ``length`` tokens cached, and the logits of the last ``num_logits`` of them."""

    sequence: Sequence
    num_logits: int
    length: int


class Rows(NamedTuple):
    """One sequence's part of a forward: its next ``num_rows`` uncached tokens, logits of the last ``num_logits``."""

    sequence: Sequence
    num_rows: int
    num_logits: int


def logits_of(sequence: Sequence, num_logits: int) -> "Generator[Need, L, L]":
    """Have every token cached, and return the logits of the last ``num_logits``, [num_logits, vocabulary].

    Of those that are cached already the logits are gone: they are run again.
    """
    sequence.num_cached = min(sequence.num_cached, len(sequence) - num_logits)
    return (yield Need(sequence, num_logits, len(sequence)))


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one forward.

    Attributes:
        max_batch_tokens: rows at the most; the rows of a single sequence that need logits always fit.
        prefill_chunk: rows of prompts while others decode; nobody waits longer for a token than these take.
        lone_chunk: rows of prompts while nobody decodes.
    """

    max_batch_tokens: int = 2048
    prefill_chunk: int = 512
    lone_chunk: int = 512


class Scheduler:
    """Chooses, of what is needed, what the next forward runs.

    Args:
        pool: where the needs' sequences are open.
    """

    def __init__(self, pool: PagePool, limits: Limits) -> None:
        self._pool = pool
        self._limits = limits

    def plan(self, needs: List[Need]) -> dict[int, Rows]:
        """Return the rows of the needs that run now, by their index. Of equals the first come first."""
        for need in needs:
            self._pool.attach(need.sequence, need.length - max(1, need.num_logits))
        prompts = [i for i, need in enumerate(needs) if _pending(need) > DECODE_ROWS]
        decoding = [i for i, need in enumerate(needs) if _pending(need) <= DECODE_ROWS]
        limits, step = self._limits, _Step(self._pool, needs)
        # However many decode, prompts get on.
        step.fill(decoding, limits.max_batch_tokens - (limits.prefill_chunk if prompts else 0))
        step.fill_in_chunks(prompts, limits.prefill_chunk if step.chosen else limits.lone_chunk)
        return step.chosen


class _Step:
    """One forward as it is put together."""

    def __init__(self, pool: PagePool, needs: List[Need]) -> None:
        self.chosen: dict[int, Rows] = {}
        self.num_rows = 0
        self._pool = pool
        self._needs = needs

    def fill(self, indices: List[int], budget: int) -> None:
        for index in indices:
            pending = _pending(self._needs[index])
            if self.chosen and self.num_rows + pending > budget:
                return
            # One whose pages were taken just now is a prompt again.
            if pending <= DECODE_ROWS:
                self._choose(index, pending)

    def fill_in_chunks(self, indices: List[int], budget: int) -> None:
        for index in indices:
            if budget <= 0:
                return
            chunk = _chunk(self._needs[index], budget)
            if self._choose(index, chunk):
                budget -= chunk

    def _choose(self, index: int, num_rows: int) -> bool:
        need = self._needs[index]
        sequence = need.sequence
        end = sequence.num_cached + num_rows
        if not self._make_room(sequence, end):
            return False
        self.chosen[index] = Rows(sequence, num_rows, need.num_logits if end == need.length else 0)
        self.num_rows += num_rows
        return True

    def _make_room(self, sequence: Sequence, length: int) -> bool:
        """Get pages for ``length`` tokens, from others where none are free. False: it waits for another forward."""
        while not self._pool.extend(sequence, length):
            victim = self._victim(sequence)
            if victim is None:
                return False
            self._pool.release(victim)
        return True

    def _victim(self, sequence: Sequence) -> Sequence | None:
        """Return whose pages may be taken: of who waits for its client, then of who came later; the last one first.

        So the oldest always gets on, and what it takes is given back when it ends.
        """
        chosen = {self._needs[index].sequence.serial for index in self.chosen}
        ready = {need.sequence.serial for need in self._needs}
        # Sessions open on another thread meanwhile, which a loop over the dictionary itself would not survive.
        known = list(self._pool.sequences.values())
        others = [one for one in known if one.block_table and one is not sequence]
        idle = [one for one in others if one.serial not in ready]
        younger = [one for one in others if one.serial > sequence.serial and one.serial not in chosen]
        candidates = idle or younger
        return candidates[-1] if candidates else None


def _pending(need: Need) -> int:
    return need.length - need.sequence.num_cached


def _chunk(need: Need, budget: int) -> int:
    """Return how many rows to run of a prompt; the rows whose logits are needed are never cut apart."""
    pending = _pending(need)
    if pending <= budget:
        return pending
    return min(budget, pending - need.num_logits) or pending
