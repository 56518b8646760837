"""The C library as Python calls it: the structures of ``native/native.h``, and torch's own threads for its loops."""

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_double, c_float, c_int, c_int32, c_int64, c_uint64, c_void_p
from functools import cache
from pathlib import Path

import torch

from specgate import cpu_library
from specgate.cpu_library import InstructionSet
from specgate.errors import InternalError

LANES = 16
"""Outputs of a panel."""
_CHOICES = {InstructionSet.AVX2: 1, InstructionSet.AVX512: 2, InstructionSet.NEON: 3}
_FAILURES = {
    1: "it got no memory",
    2: "it has no such kernels",
    3: "torch's threads did not run it",
    4: "a token or a place is out of range",
}


class Matrix(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("panels", "bias", "scales", "offsets")),
        *((name, c_int64) for name in ("out", "in_", "kind", "block")),
    ]  # fmt: skip


class Layer(Structure):
    _fields_ = [
        *((name, Matrix) for name in ("query", "key", "value", "attention_out", "gate", "up", "down")),
        *((name, c_void_p) for name in ("attention_norm", "mlp_norm", "query_norm", "key_norm")),
        ("key_pages", c_void_p), ("value_pages", c_void_p),
        ("window", c_int64), ("has_attention", c_int64), ("has_mlp", c_int64),
    ]  # fmt: skip


class Decoder(Structure):
    _fields_ = [
        ("layers", POINTER(Layer)),
        *((name, c_int64) for name in ("num_layers", "vocabulary", "width", "heads", "kv_heads", "head_dim",
                                       "mlp_width", "page_size")),
        ("scale", c_float), ("epsilon", c_float),
        ("table", c_void_p), ("table_is_bfloat16", c_int64), ("final_norm", c_void_p),
        ("head", Matrix), ("embedding", Matrix),
    ]  # fmt: skip


class NativeBatch(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("token_ids", "positions", "keep", "sequences", "pages")),
        *((name, c_int64) for name in ("num_rows", "num_kept", "num_sequences", "num_positions")),
        *((name, c_void_p) for name in ("cosines", "sines", "scratch", "logits", "parallel_for")),
    ]  # fmt: skip


class RowSampling(Structure):
    _fields_ = [
        ("logits", c_void_p),
        *((name, c_int64) for name in ("step", "vocabulary", "num_rows")),
        ("ids", c_void_p), ("keys", POINTER(c_uint64)), ("temperature", c_float), ("with_probs", c_int64),
        ("table", c_void_p), ("parallel_for", c_void_p),
    ]  # fmt: skip


class NativeDraft(Structure):
    _fields_ = [
        ("batch", NativeBatch),
        ("choosing", RowSampling),
        ("num_steps", c_int64),
        ("interrupt", POINTER(c_int32)),
        ("stop_below", c_double),
    ]


@cache
def _library() -> ctypes.CDLL:
    library = cpu_library.load()
    if library is None:
        raise InternalError(cpu_library.why_not())
    library.specgate_forward.argtypes = [c_int, POINTER(Decoder), POINTER(NativeBatch)]
    library.specgate_choose.argtypes = [c_int, POINTER(RowSampling)]
    library.specgate_draft.argtypes = [c_int, POINTER(Decoder), POINTER(NativeDraft)]
    library.specgate_product.argtypes = [c_int, POINTER(Matrix), c_void_p, c_int64, c_void_p, c_void_p]
    library.specgate_scratch_floats.argtypes = [POINTER(Decoder), c_int64, c_int64]
    library.specgate_scratch_floats.restype = c_int64
    return library


@cache
def kernels() -> int:
    """Return C's number of the instruction set that was chosen when this was first asked."""
    return _CHOICES[cpu_library.instruction_set()]


@cache
def _parallel_for() -> int | None:
    folder = Path(torch.__file__).parent / "lib"
    return ctypes.cast(ctypes.CDLL(str(next(folder.glob("libtorch_cpu.*")))).torch_parallel_for, c_void_p).value


def threads() -> int | None:
    """Return the address by which torch runs a loop on its threads; None where it has but one."""
    return _parallel_for() if torch.get_num_threads() > 1 else None


def product(matrix: Matrix, rows: torch.Tensor, out: torch.Tensor) -> None:
    """Multiply contiguous rows [rows, in] with a matrix, into ``out`` [rows, panels * LANES]."""
    _check(_library().specgate_product(kernels(), matrix, rows.data_ptr(), len(rows), out.data_ptr(), threads()))


def scratch_floats(decoder: Decoder, num_rows: int, num_kept: int) -> int:
    """Return how many float32 numbers a forward writes beside its results."""
    return int(_library().specgate_scratch_floats(decoder, num_rows, num_kept))


def forward(decoder: Decoder, batch: NativeBatch) -> None:
    """Run all layers. The interpreter is free meanwhile."""
    _check(_library().specgate_forward(kernels(), decoder, batch))


def draft(
    decoder: Decoder,
    batch: NativeBatch,
    choosing: RowSampling,
    num_steps: int,
    interrupt: c_int32,
    stop_below: float = 0.0,
) -> int:
    """Run forwards one after the other, each on what was sampled from the one before; return how many.

    The arguments are for the first one; keys, logits and table have places for all. It ends early once ``interrupt``
    is not 0, which another thread may see to: the interpreter is free meanwhile; and after a token of the first
    sequence whose probability, if ``choosing`` wants any, is less than ``stop_below``.
    """
    whole = NativeDraft(batch, choosing, num_steps, ctypes.pointer(interrupt), stop_below)
    _check(_library().specgate_draft(kernels(), decoder, whole))
    return int(whole.num_steps)


def choose(logits: torch.Tensor, keys: Sequence[int], temperature: float, with_probs: bool) -> torch.Tensor:
    """Choose a token in every row, see ``batch_sampler.Chooser``; the numbers of a row lie side by side."""
    logits, table = logits.float(), torch.empty(len(logits), 4, dtype=torch.float64)
    _check(_library().specgate_choose(kernels(), choosing_of(logits, keys, temperature, with_probs, table)))
    return table


def choosing_of(
    logits: torch.Tensor,
    keys: Sequence[int],
    temperature: float,
    with_probs: bool,
    table: torch.Tensor,
    token_ids: torch.Tensor | None = None,
) -> RowSampling:
    """Return how rows of logits [rows, vocabulary] are sampled, with a table for the result, float64 [rows, 4].

    ``token_ids``: int64 [vocabulary], ascending, which tokens the logits are of; None: all from 0 on.
    """
    rows, vocabulary = logits.shape
    ids = None if token_ids is None else token_ids.data_ptr()
    choosing = RowSampling(
        logits.data_ptr(), logits.stride(0), vocabulary, rows, ids, None, temperature if keys else 1.0, with_probs,
        table.data_ptr(), threads(),
    )  # fmt: skip
    if keys:
        choosing.keys = (c_uint64 * len(keys))(*keys)
    return choosing


def _check(failure: int) -> None:
    if failure:
        raise MemoryError(_FAILURES[failure]) if failure == 1 else RuntimeError(_FAILURES[failure])
