"""How a task's rows are sampled in one step, and what comes of it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from specgate.runtime import noise, sampling
from specgate.runtime.noise import Purpose
from specgate.types import SamplingParams, SessionSpec

Allowed = Callable[[], torch.Tensor]
"""Returns the tokens that may be sampled, uint8 [rows, bytes] on the host, a bit a token; at least one in each row."""


class Prefix(NamedTuple):
    """What penalties look at: row i of a step has seen the prompt, the output and ``draft[:i]``."""

    prompt: Sequence[int]
    output: Sequence[int]
    draft: Sequence[int] = ()


class Barred(NamedTuple):
    """``token_ids`` may not be sampled before position ``until``: stop tokens before ``min_tokens``."""

    token_ids: tuple[int, ...]
    until: int

    @classmethod
    def at(cls, position: int, spec: SessionSpec, vocab_size: int) -> "Barred | None":
        """Return what a session bars from ``position`` on; None: nothing."""
        until = spec.output_position + spec.min_tokens
        if position >= until or not spec.stop_token_ids:
            return None
        return cls(tuple(token_id for token_id in spec.stop_token_ids if token_id < vocab_size), until)

    def without(self, logits: torch.Tensor, position: int) -> torch.Tensor:
        """Return logits [rows, vocabulary] of ``position`` and the following ones, -inf where an id is barred."""
        early, later = logits.tensor_split([max(0, self.until - position)])
        ids = noise.on_device(self.token_ids, torch.int64, logits.device)
        return torch.cat([early.index_fill(1, ids, -torch.inf), later])


class SamplingStep(NamedTuple):
    """How the rows that a task needs are sampled: row i at position ``position + i``.

    Attributes:
        vocab_size: ids from here on do not exist for this session.
        prefix: needed where ``params`` has penalties.
        with_probs: return the raw probabilities of the tokens.
        stop_below: forwards in a row need not go on after a token of less raw probability; 0 is off.
        barred: what may not be sampled yet.
        allowed: called after the forward is launched, so it costs no time on a device that works beside the host. It
            may be called more than once. None: every token may be sampled.
    """

    params: SamplingParams
    seed: int
    position: int
    vocab_size: int
    prefix: Prefix | None = None
    with_probs: bool = False
    barred: Barred | None = None
    allowed: Allowed | None = None
    stop_below: float = 0.0

    @property
    def weighs(self) -> bool:
        """Return whether logits are changed before they are sampled. A mask is in them already."""
        return self.prefix is not None or self.barred is not None or bool(self.params.logit_bias)

    @property
    def is_plain(self) -> bool:
        """Return whether logits and temperature alone decide."""
        return self.params.is_unfiltered and not self.weighs and self.allowed is None

    def noise_keys(self, num_rows: int) -> list[int]:
        """Return what keys the noise of each row, which draft and target share; none where greedy."""
        if self.params.greedy:
            return []
        return [noise.row_key(self.seed, self.position + i, Purpose.SHARED) for i in range(num_rows)]


class SampledRows(NamedTuple):
    """One entry a row.

    Attributes:
        token_ids: argmax(log prob + g), the first of equal ones; without g where greedy.
        near_ties: rounding may decide the row: another token may have the best score, or a filter keep others.
        probs: of the tokens, at temperature 1 with no filters; empty unless asked for.
    """

    token_ids: list[int]
    near_ties: list[bool]
    probs: list[float]


class ForwardResult(NamedTuple):
    """What a task receives: logits [num_logits, vocabulary] on the device, and what was sampled, if it asked for that.

    The logits are the task's own: a later forward leaves them alone.
    """

    logits: torch.Tensor
    sampled: SampledRows | None = None


def masked(logits: torch.Tensor, step: SamplingStep) -> torch.Tensor:
    """Return logits that are -inf where a token is not allowed: tokens and their probabilities follow from it."""
    if step.allowed is None or not len(logits):
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
    logits, prefix = known_ids(logits, step), step.prefix
    counts = None if prefix is None else sampling.token_counts(prefix.prompt, prefix.output, prefix.draft, logits)
    weighed = sampling.adjust(logits, step.params, counts)
    return weighed if step.barred is None else step.barred.without(weighed, step.position)


def known_ids(logits: torch.Tensor, step: SamplingStep) -> torch.Tensor:
    """Return the logits of the ids that exist for the session."""
    return logits if logits.shape[-1] == step.vocab_size else logits[:, : step.vocab_size]
