"""The head of a decoder, and the choice of tokens: greedily, or by the noise that draft and target share."""

import triton
import triton.language as tl

from specgate.runtime.cuda.decoder.columns import columns, norm_scale, others, times, wait, weights
from specgate.runtime.cuda.gumbel import gumbel


@triton.jit
def choose(w, b, u, step, S: tl.constexpr, T: tl.constexpr, EARLY: tl.constexpr):
    """Logits of each sequence's last row, and of those of each program, which stand together, the best.

    This phase reads more weights than all of a layer: three tiles are on their way at any moment.
    """
    at, is_at = columns(T.HEAD, S.HIDDEN)
    gain = tl.load(w.last_norm + at, mask=is_at, other=0.0).to(tl.float32)
    num_sequences = tl.load(b.scalars + 1)
    first = tl.program_id(0) * tl.cdiv(tl.cdiv(S.VOCAB, T.HEAD), tl.num_programs(0)) * T.HEAD
    end = tl.minimum(first + tl.cdiv(tl.cdiv(S.VOCAB, T.HEAD), tl.num_programs(0)) * T.HEAD, S.VOCAB)
    ids = first + tl.arange(0, T.HEAD)
    own = _head_rows(w, ids, end, at, is_at, S)
    second = _head_rows(w, ids + T.HEAD, end, at, is_at, S)
    third = _head_rows(w, ids + 2 * T.HEAD, end, at, is_at, S)
    wait(EARLY)
    start = first
    while start < end:
        now = own
        own = second
        second = third
        third = _head_rows(w, ids + 3 * T.HEAD, end, at, is_at, S)
        for sequence in range(num_sequences):
            logit = times(now, _last_row(u, sequence, at, is_at, S) * gain)
            tl.store(_logits(u, step, sequence, S) + ids, logit, mask=ids < end)
        ids += T.HEAD
        start += T.HEAD
    # The logits are read by other threads than those that wrote them.
    tl.debug_barrier()
    for sequence in range(num_sequences):
        scale = tl.max(norm_scale(_last_row(u, sequence, at, is_at, S), S.EPSILON, S.HIDDEN), 0)
        _keep_best(b, u, step, sequence, scale, first, end, S, T)


@triton.jit
def _head_rows(w, ids, end, at, is_at, S: tl.constexpr):
    return weights(w.head, ids, ids < end, at, is_at, S.HIDDEN)


@triton.jit
def _last_row(u, sequence, at, is_at, S: tl.constexpr):
    """Return the residual stream of a sequence's last row. It is read for every tile and
    not written meanwhile, so it may come from the cache of this multiprocessor, which a wait has emptied.
    """
    return tl.load(u.hidden + (sequence * S.WIDTH + S.WIDTH - 1) * S.HIDDEN + at, mask=is_at, other=0.0)


@triton.jit
def _logits(u, step, sequence, S: tl.constexpr):
    return u.logits + (step * S.SEQUENCES + sequence) * S.VOCAB


@triton.jit
def _keep_best(b, u, step, sequence, scale, start, end, S: tl.constexpr, T: tl.constexpr):
    """Scale a program's logits of one sequence, and keep the best score, of equal ones the first."""
    best, best_id = tl.full([], float("-inf"), tl.float64), tl.full([], S.VOCAB, tl.int32)
    limit = tl.load(b.scalars + 2)
    temperature = tl.load(b.scalars + 3).to(tl.float32, bitcast=True)
    key = tl.load(b.keys + step * S.SEQUENCES + sequence)
    while start < end:
        ids = start + tl.arange(0, T.CHOICE)
        where = _logits(u, step, sequence, S) + ids
        logit = others(where, ids < end) * scale
        tl.store(where, logit, mask=ids < end)
        # A maximum leaves NaN out: it must not be passed over in silence.
        score = tl.where(logit == logit, logit, float("inf")).to(tl.float64)
        if temperature > 0:
            score = (score.to(tl.float32) / temperature).to(tl.float64) + gumbel(key, ids.to(tl.int64))
        score = tl.where((ids < end) & (ids < limit), score, float("-inf"))
        most = tl.max(score, 0)
        its = tl.min(tl.where(score == most, ids, S.VOCAB), 0)
        best_id = tl.where(most > best, its, best_id)
        best = tl.maximum(most, best)
        start += T.CHOICE
    tl.store(u.best + sequence * T.PROGRAMS + tl.program_id(0), best)
    tl.store(u.best_id + sequence * T.PROGRAMS + tl.program_id(0), best_id)


@triton.jit
def _best_of_all(u, sequence, programs, S: tl.constexpr, T: tl.constexpr):
    at = tl.arange(0, T.PROGRAMS)
    where = sequence * T.PROGRAMS + at
    score = tl.load(u.best + where, mask=at < programs, other=float("-inf"), cache_modifier=".cg")
    ids = tl.load(u.best_id + where, mask=at < programs, other=S.VOCAB, cache_modifier=".cg")
    best = tl.max(score, 0)
    return tl.minimum(tl.min(tl.where(score == best, ids, S.VOCAB), 0), S.VOCAB - 1), best


@triton.jit
def chosen_id(u, sequence, programs, S: tl.constexpr, T: tl.constexpr):
    """Return the token that a step chose, of the best ones of all programs of the head."""
    return _best_of_all(u, sequence, programs, S, T)[0]


@triton.jit
def write_report(b, u, step, programs, S: tl.constexpr, T: tl.constexpr):
    """Write a step's tokens and their scores to where the host reads them."""
    for sequence in range(tl.load(b.scalars + 1)):
        token, score = _best_of_all(u, sequence, programs, S, T)
        where = u.report + (step * S.SEQUENCES + sequence) * 2
        tl.store(where, token.to(tl.float32))
        tl.store(where + 1, score.to(tl.float32))
