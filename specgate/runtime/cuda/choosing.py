"""What rows choose, in two Triton kernels: parts of the vocabulary side by side, then what they found put together.

Torch takes ten kernels and more for it. The noise is ``runtime.noise``'s to the bit, up to the device's logarithm.
"""

import logging
from collections.abc import Sequence
from itertools import product

import torch
import triton
import triton.language as tl

from specgate.errors import reason_of
from specgate.runtime import noise
from specgate.runtime.batch_sampler import Chooser, SamplingStep, chosen_on_device
from specgate.runtime.cuda.gumbel import gumbel
from specgate.types import SamplingParams

_BLOCK = 2048
"""Of the vocabulary, a program: 75 of them for one row of 151,936 tokens, a card half full."""
_NUMBERS = tl.constexpr(7)
"""That a part leaves: best score, its id, second best; greatest number and sum of exponentials, raw and as sampled."""
_CLOSE = 1e-4
"""By which scores may differ from torch's: a near tie is that close."""
_log = logging.getLogger(__name__)


@torch.inference_mode()
def chooser_on(device: torch.device, dtype: torch.dtype, vocab_size: int) -> Chooser | None:
    """Return what chooses on such a device, if that gives what torch gives.

    Logits like those that come are tried, so that nothing is compiled on a user's request.
    """
    logits = torch.randn(3, vocab_size, generator=torch.Generator().manual_seed(0)).mul(3.0).to(device, dtype)
    try:
        for temperature, with_probs in product((0.0, 0.7), (False, True)):
            choosing = SamplingStep(SamplingParams(temperature=temperature), 1, 0, vocab_size, with_probs=with_probs)
            expected = chosen_on_device([logits], [choosing]).double()
            keys = choosing.noise_keys(len(logits)) if temperature else []
            torch.testing.assert_close(choose(logits, keys, temperature, with_probs), expected, rtol=0.0, atol=_CLOSE)
    # A kernel that is compiled here fails in the ways of its compiler.
    except Exception as error:
        _log.warning("torch chooses: %s", reason_of(error))
        return None
    return choose


def choose(raw: torch.Tensor, keys: Sequence[int], temperature: float, with_probs: bool) -> torch.Tensor:
    """Return float64 [rows, 4], see ``batch_sampler.Chooser``. A row that is not finite has a score that is none."""
    num_rows, vocab_size = raw.shape
    raw = raw if raw.stride(1) == 1 else raw.contiguous()
    parts = triton.cdiv(vocab_size, _BLOCK)
    found = torch.empty(num_rows, parts, _NUMBERS.value, dtype=torch.float64, device=raw.device)
    table = torch.empty(num_rows, 4, dtype=torch.float64, device=raw.device)
    sampled = bool(keys)
    starts = noise.on_device([noise.signed(key) for key in keys], torch.int64, raw.device) if sampled else table
    _choose_part[(num_rows, parts)](
        raw, starts, found, temperature, raw.stride(0), vocab_size, SAMPLED=sampled, BLOCK=_BLOCK
    )  # fmt: skip
    _merge[(num_rows,)](
        raw, found, table, raw.stride(0), vocab_size, parts, SAMPLED=sampled, WITH_PROBS=with_probs,
        PARTS=triton.next_power_of_2(parts),
    )  # fmt: skip
    return table


@triton.jit
def _exponentials(x):
    """Return the greatest of x, and the sum of exp(x - greatest); 0 where all are -inf."""
    greatest = tl.max(x, 0)
    finite = tl.where(greatest == float("-inf"), 0.0, greatest)
    return greatest, tl.sum(tl.exp(x - finite), 0)


@triton.jit(do_not_specialize=["row_stride", "vocab_size"], do_not_specialize_on_alignment=["raw"])
def _choose_part(
    raw, keys, found, temperature, row_stride, vocab_size, SAMPLED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = part * BLOCK + tl.arange(0, BLOCK)
    is_id = ids < vocab_size
    x = tl.load(raw + row * row_stride + ids, mask=is_id, other=float("-inf")).to(tl.float32)
    raw_greatest, raw_total = _exponentials(x)
    greatest, total = raw_greatest, raw_total
    score = x.to(tl.float64)
    if SAMPLED:
        x = x / temperature
        greatest, total = _exponentials(x)
        score = x.to(tl.float64) + gumbel(tl.load(keys + row), ids.to(tl.int64))
    best = tl.max(score, 0)
    # Of equal scores the first.
    best_id = tl.minimum(tl.min(tl.where(score == best, ids, vocab_size), 0), vocab_size - 1)
    second = tl.max(tl.where(ids == best_id, float("-inf"), score), 0)
    where = found + (row * tl.num_programs(1) + part) * _NUMBERS
    tl.store(where, best)
    tl.store(where + 1, best_id.to(tl.float64))
    tl.store(where + 2, second)
    tl.store(where + 3, raw_greatest.to(tl.float64))
    tl.store(where + 4, raw_total.to(tl.float64))
    tl.store(where + 5, greatest.to(tl.float64))
    tl.store(where + 6, total.to(tl.float64))


@triton.jit
def _log_sum_exp(where, at, is_at):
    greatest = tl.load(where + at * _NUMBERS, mask=is_at, other=float("-inf"))
    total = tl.load(where + at * _NUMBERS + 1, mask=is_at, other=0.0)
    most = tl.max(greatest, 0)
    finite = tl.where(most == float("-inf"), 0.0, most)
    return finite + tl.log(tl.sum(total * tl.exp(greatest - finite), 0))


@triton.jit(do_not_specialize=["row_stride", "vocab_size", "parts"], do_not_specialize_on_alignment=["raw"])
def _merge(
    raw, found, table, row_stride, vocab_size, parts, SAMPLED: tl.constexpr, WITH_PROBS: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, PARTS)
    is_at, where = at < parts, found + row * parts * _NUMBERS
    bests = tl.load(where + at * _NUMBERS, mask=is_at, other=float("-inf"))
    ids = tl.load(where + at * _NUMBERS + 1, mask=is_at, other=0.0)
    seconds = tl.load(where + at * _NUMBERS + 2, mask=is_at, other=float("-inf"))
    best = tl.max(bests, 0)
    winner = tl.min(tl.where(bests == best, at, PARTS - 1), 0)
    lead = best - tl.max(tl.where(at == winner, seconds, bests), 0)
    token = tl.sum(tl.where(at == winner, ids, 0.0), 0)
    raw_log = _log_sum_exp(where + 3, at, is_at)
    # A row that has NaN or no finite greatest number has no finite logarithm either: its score says so.
    score = best - raw_log * 0.0
    if SAMPLED:
        score = best - _log_sum_exp(where + 5, at, is_at)
    prob = score
    if WITH_PROBS:
        logit = tl.load(raw + row * row_stride + token.to(tl.int64)).to(tl.float64)
        prob = tl.exp(logit - raw_log)
    tl.store(table + row * 4, token)
    tl.store(table + row * 4 + 1, score)
    tl.store(table + row * 4 + 2, lead)
    tl.store(table + row * 4 + 3, prob)
