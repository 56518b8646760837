"""What runs in the next forward: pure decisions over needs and pages, no torch.

Every sequence that decodes is in every forward. Prompts fill the rest, a chunk at a time, so that a long one holds
nobody up for longer than one chunk; several of them take turns. A sequence for which there are no pages takes them
from a younger one, or one whose client is silent; that one is rebuilt from its tokens later.

Branches, which are guesses, run when nobody else is ready, on pages that are free. Where there are none, or somebody
wants theirs, they are closed.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from specgate.runtime.kv_pages import KVSequence, PagePool

if TYPE_CHECKING:
    import torch

    from specgate.runtime.batch_sampler import Answer, SamplingStep

DECODE_ROWS = 32
"""A sequence with no more uncached tokens than this decodes, as does one that needs the logits of all of them; any
other one is a prompt."""
PATIENCE = 32
"""Plans that a sequence may wait for its client before younger ones may take its pages. A round's way to the client
and back takes a few: two that took each other's pages between rounds would compute everything anew in every round."""


class ForwardRequest(NamedTuple):
    """What a task yields: its first ``length`` tokens cached, and the logits of the last ``num_logits`` of them.

    ``sample``: how a token is chosen in each of those rows; the engine does it for all tasks of a step at once.

    ``most_steps``: so many tokens may be chosen one behind the other, each from the logits of the one before, if the
    engine can. All but the last one are then the sequence's, and the answer has a row for each.

    ``is_prompt``: it takes turns with prompts, however few its rows are.
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
) -> "Generator[ForwardRequest, Answer, Answer]":
    """Have every token cached, and return the logits of the last ``num_logits``, and what was chosen in these rows.

    Of those that are cached already the logits are gone: they are run again. ``most_steps`` as of ``ForwardRequest``.
    """
    sequence.num_cached = min(sequence.num_cached, len(sequence) - num_logits)
    return (yield ForwardRequest(sequence, num_logits, len(sequence), sample, most_steps))


def logits_of(sequence: KVSequence, num_logits: int) -> "Generator[ForwardRequest, Answer, torch.Tensor]":
    """Have every token cached, and return the logits of the last ``num_logits`` alone, [num_logits, vocabulary]."""
    return (yield from forward(sequence, num_logits)).logits


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one forward.

    Attributes:
        max_batch_tokens: rows at the most; the rows of a single sequence that need logits always fit.
        prefill_chunk: rows of prompts while others decode, or may at any moment; nobody waits longer for a token than
            these take.
        lone_chunk: rows of prompts while there is nobody else.
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
        self._num_plans = 0

    def plan(self, needs: Sequence[ForwardRequest]) -> dict[int, Rows]:
        """Return the rows of the needs that run now, by their index. Of equals the first come first.

        Nothing runs where all wait for pages that older ones, who are with their clients, may keep for some plans yet.
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
        limits, step = self._limits, _Step(self._pool, needs, self._num_plans - PATIENCE)
        # However many decode, prompts get on.
        step.fill(decoding, limits.max_batch_tokens - (limits.prefill_chunk if prompts else 0))
        step.fill_in_chunks(prompts, limits.prefill_chunk if step.chosen or self._is_awaited() else limits.lone_chunk)
        return step.chosen

    def _plan_branches(self, needs: Sequence[ForwardRequest]) -> dict[int, Rows]:
        """Run what there are free pages for. These plans do not count: nobody's patience runs out over guesses."""
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
        """Return whether somebody is with its client just now, and may be back before a chunk has run."""
        now = self._num_plans
        return any(now - PATIENCE < one.last_plan < now for one in self._pool.snapshot())


class _Step:
    """One forward as it is put together."""

    def __init__(self, pool: PagePool, needs: Sequence[ForwardRequest], long_ago: int) -> None:
        self.chosen: dict[int, Rows] = {}
        self._robbed: list[KVSequence] = []
        self._pool = pool
        self._needs = needs
        self._index_of = {need.sequence.serial: index for index, need in enumerate(needs)}
        self._long_ago = long_ago

    def fill(self, indices: Sequence[int], budget: int) -> None:
        for index in self._not_robbed(indices):
            pending = _pending(self._needs[index])
            if self.chosen and pending > budget:
                return
            if self._choose(index, pending):
                budget -= pending

    def fill_in_chunks(self, indices: Sequence[int], budget: int) -> None:
        for index in self._not_robbed(indices):
            if budget <= 0:
                return
            chunk = _chunk(self._needs[index], budget)
            if self._choose(index, chunk):
                budget -= chunk

    def _not_robbed(self, indices: Sequence[int]) -> Iterator[int]:
        """Leave out who was robbed in this plan: that one is a prompt again, which may begin with a known prefix."""
        return (index for index in indices if self._needs[index].sequence not in self._robbed)

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

        Nobody is robbed for one that could not get all that it needs: it would not run, and nor would they.
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
        self._robbed.append(victim)
        self.chosen.pop(self._index_of.get(victim.serial, -1), None)

    def _victims(self, sequence: KVSequence) -> list[KVSequence]:
        """Return whose pages may be taken, the first to lose them last: those of guesses, of who waits long for its
        client, of who came later and waits for its client, if only just now, and of others who came later.

        Of equals the last one first. So the oldest always gets on, also before one that was chosen already, and what
        it takes is given back when it ends.
        """
        others = [one for one in self._pool.snapshot() if one.block_table and one is not sequence]
        ranks = [(self._rank(one, sequence), one) for one in others]
        # Sorted by rank alone: of equals the last one stays last.
        return [one for rank, one in sorted(ranks, key=lambda item: item[0]) if rank >= 0]

    def _rank(self, one: KVSequence, asking: KVSequence) -> int:
        """Return who loses its pages sooner, as a higher number; -1: nobody takes them."""
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
