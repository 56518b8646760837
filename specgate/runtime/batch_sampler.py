"""What all sessions of a forward choose, in few tensor operations and one transfer to the host.

Rows whose logits go the same way are chosen together, whosever they are. A row's choice does not depend on who shares
the step: every operation works along the vocabulary, and noise belongs to the position.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

import torch

from specgate.errors import NonFiniteLogits
from specgate.runtime import noise, sampling
from specgate.runtime.barred import Barred
from specgate.runtime.filters import near_tie_bound, support
from specgate.runtime.noise import Purpose
from specgate.types import SamplingParams

_CPU_PASS, _PASS = 1 << 15, 1 << 22
"""Scores that are made at once. On a CPU more than these would be fresh memory, page by page, in every step; elsewhere
it is what memory can be spared for."""

Chooser = Callable[[torch.Tensor, Sequence[int], float, bool], torch.Tensor]
"""Chooses rows of logits [rows, vocabulary] in one call. It is given each row's key, none where greedy, the
temperature, and whether probabilities are wanted. Returns the table of ``chosen_on_device``, as torch makes it but for
ties within the rounding of a float32.
"""
Allowed = Callable[[], torch.Tensor]
"""Returns the tokens that may be chosen, uint8 [rows, bytes] on the host, a bit a token; at least one in each row."""


class Prefix(NamedTuple):
    """What penalties look at: row i of a step has seen the prompt, the output and ``draft[:i]``."""

    prompt: Sequence[int]
    output: Sequence[int]
    draft: Sequence[int] = ()


class SamplingStep(NamedTuple):
    """How the rows that a task needs are chosen: row i at position ``position + i``.

    Attributes:
        vocab_size: ids from here on do not exist for this session.
        prefix: needed where ``params`` has penalties.
        with_probs: return the raw probabilities of what was chosen.
        barred: what may not be chosen yet.
        allowed: called when the forward is on its way: on a device that works beside the host it costs no time then.
            More than once, it may be. None: all may be chosen.
    """

    params: SamplingParams
    seed: int
    position: int
    vocab_size: int
    prefix: Prefix | None = None
    with_probs: bool = False
    barred: Barred | None = None
    allowed: Allowed | None = None

    @property
    def weighs(self) -> bool:
        """Return whether it is not the logits themselves that are chosen from. A mask is in them already."""
        return self.prefix is not None or self.barred is not None or bool(self.params.logit_bias)

    def noise_keys(self, num_rows: int) -> list[int]:
        """Return what keys the noise of each row, which draft and target share."""
        return [noise.row_key(self.seed, self.position + i, Purpose.SHARED) for i in range(num_rows)]


class SampledRows(NamedTuple):
    """One entry a row.

    Attributes:
        token_ids: argmax(log prob + g), the first of equal ones; without g where greedy.
        near_ties: rounding may decide the row: another token may have the best score, or a filter keep others.
        probs: of what was chosen, at temperature 1 with no filters; empty unless asked for.
    """

    token_ids: list[int]
    near_ties: list[bool]
    probs: list[float]


class Answer(NamedTuple):
    """What a task receives: logits [num_logits, vocabulary] on the device, and what was chosen, if it asked for that.

    The logits are the task's own: a later forward leaves them alone.
    """

    logits: torch.Tensor
    sampled: SampledRows | None = None


class _Entry(NamedTuple):
    """One task's rows, in a step."""

    logits: torch.Tensor
    step: SamplingStep | None


def answers(
    logits: Sequence[torch.Tensor], asked: Sequence[SamplingStep | None], chooser: Chooser | None = None
) -> list[Answer | NonFiniteLogits]:
    """Make all choices of a step; a task whose logits are broken gets the error that is its own.

    Args:
        logits: each task's rows, [num_logits, vocabulary]; it may be none. Answers have them masked.
        asked: how each task's rows are chosen; None: it is given the logits alone.
        chooser: chooses where nothing is filtered.
    """
    entries = [_Entry(masked(rows, step), step) for rows, step in zip(logits, asked, strict=True)]
    alike: dict[Hashable, list[int]] = {}
    for index, entry in enumerate(entries):
        alike.setdefault(_kind(entry), []).append(index)
    alike.pop(None, None)
    result: list[Answer | NonFiniteLogits] = [Answer(entry.logits) for entry in entries]
    if alike:
        table = _joined([_table([entries[i] for i in indices], chooser) for indices in alike.values()])
        _hand_out(table.tolist(), (i for indices in alike.values() for i in indices), entries, result)
    return result


def _hand_out(
    table: list[list[float]], order: Iterable[int], entries: list[_Entry], result: list[Answer | NonFiniteLogits]
) -> None:
    """Cut the step's table up among its tasks, which come in ``order``."""
    first = 0
    for index in order:
        logits, step = entries[index]
        result[index] = answer_of(logits, table[first : (first := first + len(logits))], step)


def answer_of(
    logits: torch.Tensor, table: Sequence[Sequence[float]], step: SamplingStep | None
) -> Answer | NonFiniteLogits:
    """Return one task's answer, or the error that is its own.

    Args:
        table: its rows of what ``chosen_on_device`` told.
    """
    ids, best, leads, probs = zip(*table, strict=True)
    if not all(map(math.isfinite, (*best, *probs))):
        return NonFiniteLogits("the model answered with NaN or infinite logits")
    if step is None:
        return Answer(logits)
    bound = near_tie_bound(step.params)
    near_ties = [lead < bound for lead in leads]
    return Answer(logits, SampledRows([int(i) for i in ids], near_ties, list(probs) if step.with_probs else []))


def have_one_law(asked: Iterable[SamplingStep | None]) -> bool:
    """Return whether all of them choose, and what they choose can be chosen together."""
    laws = {None if step is None else _law_of(step) for step in asked}
    return len(laws) == 1 and None not in laws


def chosen_on_device(
    logits: Sequence[torch.Tensor], asked: Sequence[SamplingStep], chooser: Chooser | None = None
) -> torch.Tensor:
    """Choose rows of one law; return, on the device and without waiting for it, [rows, 4]: see ``_table``."""
    return _table([_Entry(*entry) for entry in zip(logits, asked, strict=True)], chooser)


def check_finite(logits: Sequence[torch.Tensor]) -> None:
    """Raise NonFiniteLogits if a row is NaN or infinite."""
    for answer in answers(logits, [None] * len(logits)):
        if isinstance(answer, NonFiniteLogits):
            raise answer


def masked(logits: torch.Tensor, step: SamplingStep | None) -> torch.Tensor:
    """Return logits that are -inf where a token is not allowed: what is chosen, and its probability, follow from it."""
    if step is None or step.allowed is None or not len(logits):
        return logits
    bits, vocab_size, device = step.allowed(), step.vocab_size, logits.device
    bits = (bits.pin_memory() if device.type == "cuda" else bits).to(device, non_blocking=True)
    places = noise.on_device([1 << bit for bit in range(8)], torch.uint8, device)
    forbidden = bits[:, :, None].bitwise_and(places).eq(0).flatten(1)[:, :vocab_size]
    logits = logits.clone()
    logits[:, :vocab_size].masked_fill_(forbidden, -torch.inf)
    return logits


def adjusted(logits: torch.Tensor, step: SamplingStep) -> torch.Tensor:
    """Return float32 logits [rows, step.vocab_size] with bias and penalties, before temperature.

    What is barred in a row has -inf there.
    """
    logits, prefix = _within(logits, step), step.prefix
    counts = None if prefix is None else sampling.token_counts(prefix.prompt, prefix.output, prefix.draft, logits)
    weighed = sampling.adjust(logits, step.params, counts)
    return weighed if step.barred is None else step.barred.without(weighed, step.position)


class _Law(NamedTuple):
    """What rows that are chosen together have in common; ``unweighed``: none of them has a bias, a penalty or a bar."""

    params: SamplingParams
    unweighed: bool
    with_probs: bool

    @property
    def is_raw(self) -> bool:
        """Return whether what is sampled is the raw distribution."""
        return self.unweighed and self.params.is_unfiltered and self.params.temperature == 1.0


def _kind(entry: _Entry) -> Hashable:
    """Return what rows must have in common to be chosen together; None: there are no rows."""
    if entry.step is None:
        return "logits" if len(entry.logits) else None
    return _law_of(entry.step)


def _law_of(step: SamplingStep) -> Hashable:
    params, vocab_size = step.params, step.vocab_size
    if params.greedy:
        return vocab_size
    # The penalty stretches what rounding may do at the filters' edges.
    return vocab_size, params.temperature, params.top_k, params.top_p, params.min_p, params.repetition_penalty


def _table(entries: list[_Entry], chooser: Chooser | None) -> torch.Tensor:
    """Return [rows, 4]: the id chosen, its score, its lead over what else may be chosen, its raw probability.

    float32 or float64, as the scores are; both hold every id below 2^24. How a row is chosen does not
    depend on whether another one is weighed.
    """
    steps = [entry.step for entry in entries if entry.step is not None]
    if not steps:
        # The score alone, to tell whether the row is finite.
        return _joined([entry.logits for entry in entries]).amax(-1, keepdim=True).float().expand(-1, 4)
    raw = _joined([_within(entry.logits, entry.step) for entry in entries if entry.step])
    keys = [key for entry in entries for key in _keys(entry)]
    unweighed = not any(step.weighs for step in steps)
    law = _Law(steps[0].params, unweighed, any(step.with_probs for step in steps))
    weighed = raw
    if not unweighed:
        weighed = _joined([adjusted(entry.logits, entry.step) for entry in entries if entry.step])
    if chooser is not None and law.params.is_unfiltered:
        table = chooser(weighed, keys, law.params.temperature, law.with_probs and unweighed)
        if law.with_probs and not unweighed:
            table[:, 3:] = raw.float().log_softmax(-1).gather(1, table[:, :1].long()).exp()
        return table
    raw = raw.float()
    weighed = raw if unweighed else weighed
    rows_a_pass = max(1, (_CPU_PASS if raw.device.type == "cpu" else _PASS) // raw.shape[-1])
    if len(raw) <= rows_a_pass:
        return _choose(raw, weighed, keys, law)
    passes = [slice(first, first + rows_a_pass) for first in range(0, len(raw), rows_a_pass)]
    return torch.cat([_choose(raw[rows], weighed[rows], keys[rows], law) for rows in passes])


def _keys(entry: _Entry) -> list[int]:
    step = entry.step
    if step is None or step.params.greedy:
        return []
    return step.noise_keys(len(entry.logits))


def _choose(raw: torch.Tensor, weighed: torch.Tensor, keys: list[int], law: _Law) -> torch.Tensor:
    """Choose rows of one law: argmax(log prob + g).

    The Gumbel coupling of Daliri, Musco, Suresh 2024: draft and target use the same g, so they often agree.
    """
    log_probs, scores, rivals, edge = None, weighed, weighed, None
    if not law.params.greedy:
        scaled, kept, edge = support(weighed, law.params)
        log_probs = kept.log_softmax(-1)
        gumbel = noise.gumbel(keys, torch.arange(raw.shape[-1], device=raw.device))
        if edge is None:
            scores = rivals = gumbel.add_(log_probs)
        else:
            scores = gumbel + log_probs
            rivals = gumbel.add_(scaled).masked_fill_(scaled < edge.possible, -torch.inf)
    # Of equal scores max takes the first, as transformers does; topk does not.
    best, ids = scores.max(-1, keepdim=True)
    own = rivals.gather(1, ids)
    # In place, but for the logits, which are the task's.
    rivals = rivals.scatter(1, ids, -torch.inf) if rivals is weighed else rivals.scatter_(1, ids, -torch.inf)
    lead = own - rivals.amax(-1, keepdim=True)
    if edge is not None:
        # A filter may leave the chosen token out, unless it is the only one that may be in.
        lead.masked_fill_((scaled.gather(1, ids) < edge.sure) & lead.isfinite(), 0.0)
    probs = best
    if law.with_probs:
        raw_log_probs = log_probs if log_probs is not None and law.is_raw else raw.log_softmax(-1)
        probs = raw_log_probs.gather(1, ids).exp()
    return torch.cat([ids.to(best.dtype), best, lead, probs.to(best.dtype)], dim=1)


def _within(logits: torch.Tensor, step: SamplingStep) -> torch.Tensor:
    """Return the logits of the ids that exist for the session."""
    return logits if logits.shape[-1] == step.vocab_size else logits[:, : step.vocab_size]


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
