"""What all sessions of a forward sample, in few tensor operations and one transfer to the host.

Rows of one law are sampled together, whosever they are. What a row gives does not depend on who shares the step: every
operation works along the vocabulary, and noise belongs to the position.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain, islice
from typing import NamedTuple

import torch

from specgate.errors import NonFiniteLogits
from specgate.runtime import noise
from specgate.runtime.filters import near_tie_bound, support
from specgate.runtime.sampling_step import ForwardResult, SampledRows, SamplingStep, adjusted, known_ids, masked
from specgate.types import SamplingParams

_CPU_PASS, _PASS = 1 << 15, 1 << 22
"""Scores that are made at once. More of them would be fresh memory, page by page, in every step on a CPU; elsewhere it
is what memory can be spared for."""

Chooser = Callable[[torch.Tensor, Sequence[int], float, bool], torch.Tensor]
"""Samples rows of logits [rows, vocabulary] in one call. It is given each row's key, none where greedy, the
temperature, and whether probabilities are wanted. Returns the table of ``chosen_on_device``; only ties within a
float32's rounding may differ from torch's.
"""


def answers(
    logits: Sequence[torch.Tensor], asked: Sequence[SamplingStep | None], chooser: Chooser | None = None
) -> list[ForwardResult | NonFiniteLogits]:
    """Sample all rows of a step; a task whose logits are broken gets the error that is its own.

    Args:
        logits: each task's rows, [num_logits, vocabulary]; there may be none. Answers have them masked.
        asked: how each task's rows are sampled; None: it is given the logits alone.
        chooser: samples where nothing is filtered.
    """
    rows = [own if step is None else masked(own, step) for own, step in zip(logits, asked, strict=True)]
    alike: dict[Hashable, list[int]] = {}
    for index, step in enumerate(asked):
        if len(rows[index]):
            alike.setdefault(_law_of(step), []).append(index)
    result: list[ForwardResult | NonFiniteLogits] = [ForwardResult(own) for own in rows]
    tables = [_table([rows[i] for i in indices], [asked[i] for i in indices], chooser) for indices in alike.values()]
    table = iter(_joined(tables).tolist() if tables else ())
    for index in chain.from_iterable(alike.values()):
        result[index] = answer_of(rows[index], list(islice(table, len(rows[index]))), asked[index])
    return result


def answer_of(
    logits: torch.Tensor, table: Sequence[Sequence[float]], step: SamplingStep | None
) -> ForwardResult | NonFiniteLogits:
    """Return one task's answer, or the error that is its own.

    Args:
        table: its rows of ``chosen_on_device``.
    """
    ids, best, leads, probs = zip(*table, strict=True)
    if not all(map(math.isfinite, (*best, *probs))):
        return NonFiniteLogits("the model answered with NaN or infinite logits")
    if step is None:
        return ForwardResult(logits)
    bound = near_tie_bound(step.params)
    near_ties = [lead < bound for lead in leads]
    return ForwardResult(logits, SampledRows([int(i) for i in ids], near_ties, list(probs) if step.with_probs else []))


def have_one_law(asked: Iterable[SamplingStep | None]) -> bool:
    """Return whether all of them sample, and their rows can be sampled together."""
    laws = {_law_of(step) for step in asked}
    return len(laws) == 1 and None not in laws


def check_finite(logits: Sequence[torch.Tensor]) -> None:
    """Raise NonFiniteLogits if a row is NaN or infinite."""
    for answer in answers(logits, [None] * len(logits)):
        if isinstance(answer, NonFiniteLogits):
            raise answer


def _law_of(step: SamplingStep | None) -> Hashable:
    """Return what rows must have in common to be sampled together; None: only their logits are wanted."""
    if step is None:
        return None
    params, vocab_size = step.params, step.vocab_size
    if params.greedy:
        return vocab_size
    # The penalty stretches what rounding may do at the filters' edges.
    return vocab_size, params.temperature, params.top_k, params.top_p, params.min_p, params.repetition_penalty


def _table(
    logits: Sequence[torch.Tensor], asked: Sequence[SamplingStep | None], chooser: Chooser | None
) -> torch.Tensor:
    steps = [step for step in asked if step is not None]
    if steps:
        return chosen_on_device(logits, steps, chooser)
    # The greatest logit alone tells whether a row is finite.
    return _joined(logits).amax(-1, keepdim=True).float().expand(-1, 4)


class _Law(NamedTuple):
    """What rows that are sampled together share; ``unweighed``: none of them has a bias, a penalty or a bar."""

    params: SamplingParams
    unweighed: bool
    with_probs: bool

    @property
    def is_raw(self) -> bool:
        """Return whether what is sampled is the raw distribution."""
        return self.unweighed and self.params.is_unfiltered and self.params.temperature == 1.0


def chosen_on_device(
    logits: Sequence[torch.Tensor], steps: Sequence[SamplingStep], chooser: Chooser | None = None
) -> torch.Tensor:
    """Sample rows of one law, on the device and without waiting for it.

    Returns:
        [rows, 4]: the id chosen, its score, its lead over what else may be chosen, its raw probability. float32 or
        float64, as the scores are; both hold every id below 2^24. Whether another row is weighed changes no row.
    """
    pairs = list(zip(logits, steps, strict=True))
    raw = _joined([known_ids(rows, step) for rows, step in pairs])
    keys = [key for rows, step in pairs for key in step.noise_keys(len(rows))]
    unweighed = not any(step.weighs for step in steps)
    law = _Law(steps[0].params, unweighed, any(step.with_probs for step in steps))
    weighed = raw if unweighed else _joined([adjusted(rows, step) for rows, step in pairs])
    if chooser is not None and law.params.is_unfiltered:
        table = chooser(weighed, keys, law.params.temperature, law.with_probs and unweighed)
        if law.with_probs and not unweighed:
            table[:, 3:] = raw.float().log_softmax(-1).gather(1, table[:, :1].long()).exp()
        return table
    raw = raw.float()
    weighed = raw if unweighed else weighed
    size = max(1, (_CPU_PASS if raw.device.type == "cpu" else _PASS) // raw.shape[-1])
    passes = [slice(first, first + size) for first in range(0, len(raw), size)]
    return _joined([_choose(raw[rows], weighed[rows], keys[rows], law) for rows in passes])


def _choose(raw: torch.Tensor, weighed: torch.Tensor, keys: list[int], law: _Law) -> torch.Tensor:
    """Sample rows of one law: argmax(log prob + g).

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


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
