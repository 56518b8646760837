"""Which way to compute attention serves a model: what was asked for, what torch and the device have, what is right."""

import importlib
import inspect
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from specgate.errors import InvalidArgument, reason_of
from specgate.runtime.attention.interface import Kernel, wait_for
from specgate.runtime.attention.paged_sdpa import PagedSdpaKernel
from specgate.runtime.attention.probe import TIMED, Probe, errors_of, kernel_us
from specgate.runtime.attention.varlen import Store, VarlenAttention, VarlenKernel, copy_to_slots
from specgate.runtime.loading import LoadedModel

_TORCH_DTYPES = (torch.bfloat16, torch.float16)
_NEEDED = frozenset({"seqused_k", "block_table", "enable_gqa", "window_size"})
"""What ``varlen_attn`` must take to read KV pages: torch 2.12 and later."""
_PROBE_TOLERANCES = {torch.float32: 1e-4}
"""Relative. float32 that a kernel shortens is off by three times as much, at least."""
_PROBE_TOLERANCE = 2e-2
_log = logging.getLogger(__name__)


class NoFusedAttention(Exception):
    """Says why the fused attention cannot be used."""


CLEARLY = 0.9
"""Of two kernels the second one serves where it takes less than this share of the first one's time."""
KernelUs = Callable[[VarlenAttention, Probe, torch.device, torch.dtype], float]
"""Times a kernel: see ``probe.kernel_us``."""


class FusedAttention(NamedTuple):
    """One way to call a kernel, its name for people, whether it takes a soft-cap, and what writes the pages."""

    description: str
    attention: VarlenAttention
    caps_scores: bool = False
    store: Store = copy_to_slots


def kernels_for(
    attention: str, loaded: LoadedModel, find: Callable[[LoadedModel], FusedAttention] | None = None
) -> list[Kernel]:
    """Return the ways to compute attention that may serve ``loaded``, the most wanted first; each says why.

    Args:
        attention: "auto", "varlen" or "sdpa".
        find: finds the fused kernel on the model's device; ``fused_attention`` where absent.

    Raises:
        InvalidArgument: "varlen" where it cannot be had.
    """
    spans = PagedSdpaKernel()
    if attention == "sdpa" or (attention == "auto" and loaded.device.type == "cpu"):
        spans.why = "--attention sdpa" if attention == "sdpa" else "the CPU's own"
        return [spans]
    try:
        way = (find or fused_attention)(loaded)
    except NoFusedAttention as error:
        if attention == "varlen":
            raise InvalidArgument("--attention", f"varlen cannot be had here: {error}") from error
        _log.warning("attention by varlen is not used: %s", error)
        spans.why = f"varlen cannot be had here: {error}"
        return [spans]
    kernel = VarlenKernel(
        way.attention, loaded.context_length, way.description, caps_scores=way.caps_scores, store=way.store
    )
    return [kernel] if attention == "varlen" else [kernel, spans]


def fused_attention(loaded: LoadedModel, kernel_us: KernelUs = kernel_us) -> FusedAttention:
    """Return torch's kernel or ours, called in a way that gave the right numbers on this device just now.

    Where both do, the faster one by ``kernel_us``.

    Raises:
        NoFusedAttention: there is none for this device, number format and versions of torch and Triton.
    """
    if loaded.device.type != "cuda":
        raise NoFusedAttention("it needs a CUDA device")
    found, reasons = [], []
    for ways in (ways_of_triton,) if _caps_scores(loaded) else (ways_of_torch, ways_of_triton):
        try:
            found.append(first_right(ways(loaded), loaded.device, loaded.dtype))
        except NoFusedAttention as error:
            reasons.append(str(error))
    if not found:
        raise NoFusedAttention("; ".join(reasons))
    way = found[0] if len(found) == 1 else faster(found, loaded, kernel_us)
    return way._replace(store=_store(loaded.device))


def faster(ways: Sequence[FusedAttention], loaded: LoadedModel, kernel_us: KernelUs) -> FusedAttention:
    """Return the way that takes less time over heads like the model's; the first one if none can be timed.

    A later one must be clearly faster: replicas of one model should not differ, as they round differently.
    """
    timed = [(us, way) for way in ways if (us := _us_or_none(way, loaded, kernel_us)) is not None]
    if not timed:
        return ways[0]
    us, best = next(one for one in timed if one[0] * CLEARLY <= min(timed, key=lambda other: other[0])[0])
    others = "".join(f", {way.description} {other_us:.0f}" for other_us, way in timed if way is not best)
    return best._replace(description=f"{best.description}: {us:.0f} us{others}")


def _us_or_none(way: FusedAttention, loaded: LoadedModel, kernel_us: KernelUs) -> float | None:
    """Return what a way takes; None where it is not to be had for these heads, or they are not known."""
    try:
        return sum(kernel_us(way.attention, one, loaded.device, loaded.dtype) for one in _probes_like(loaded))
    # What was right on other heads may refuse these.
    except Exception as error:
        _log.warning("%s was not timed: %s", way.description, reason_of(error))
        wait_for(loaded.device)
        return None


def _probes_like(loaded: LoadedModel) -> list[Probe]:
    config = loaded.model.config.get_text_config()
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return [probe._replace(heads=heads, kv_heads=kv_heads, head_dim=head_dim) for probe in TIMED]


def _caps_scores(loaded: LoadedModel) -> bool:
    """Return whether the model asks for a soft-cap, which torch's kernel has no place for."""
    return bool(getattr(loaded.model.config.get_text_config(), "attn_logit_softcapping", None))


@torch.inference_mode()
def _store(device: torch.device) -> Store:
    """Return what writes keys and values in one kernel, where it can be had here."""
    rows, pages = torch.ones(1, 1, 2, 16, device=device), torch.zeros(2, 1, 2, 1, 16, device=device)
    try:
        store: Store = importlib.import_module("specgate.runtime.cuda.elementwise").store
        store(rows, rows, pages[0], pages[1], torch.tensor([1, 0], device=device))
    # Triton is missing, or the compiler that it needs.
    except Exception as error:
        _log.info("keys and values are written by torch: %s", error)
        return copy_to_slots
    return store if bool((pages == 1).all()) else copy_to_slots


def ways_of_torch(loaded: LoadedModel) -> list[FusedAttention]:
    """Return the ways to call torch's own kernel. Raises NoFusedAttention where it has none for the number format."""
    attention = torch_varlen()
    if loaded.dtype not in _TORCH_DTYPES:
        raise NoFusedAttention("varlen_attn needs --dtype bfloat16 or float16")
    return ways_to_call(attention)


def ways_of_triton(loaded: LoadedModel) -> list[FusedAttention]:
    """Return our own kernel. Raises NoFusedAttention without Triton, which comes with torch's CUDA builds."""
    try:
        ours = importlib.import_module("specgate.runtime.attention.paged_triton")
    except ImportError as error:
        raise NoFusedAttention(f"Triton cannot be imported: {error}") from error
    return [FusedAttention(f"Triton {ours.triton.__version__}", ours.TritonAttention(loaded.device), caps_scores=True)]


def torch_varlen() -> VarlenAttention:
    """Return ``varlen_attn`` if it can read KV pages; versions differ, so its signature is asked.

    Raises:
        NoFusedAttention: this torch has none, or one without pages.
    """
    try:
        attention: VarlenAttention = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    except (ImportError, AttributeError) as error:
        raise NoFusedAttention(f"torch {torch.__version__} has no varlen_attn") from error
    if missing := _NEEDED - inspect.signature(attention).parameters.keys():
        raise NoFusedAttention(f"varlen_attn of torch {torch.__version__} has no {', '.join(sorted(missing))}")
    return attention


def ways_to_call(attention: VarlenAttention) -> list[FusedAttention]:
    """Return the ways to call ``attention``, the most wanted first.

    With a block table some backends ask for ``cu_seq_k``, some refuse it, and none needs it. ``num_splits`` keeps a
    text from depending on what else is in the batch; torch 2.12 takes the argument, and refuses it where it has no
    FlashAttention 3.
    """
    name = f"varlen_attn of torch {torch.__version__}"
    with_one_split = FusedAttention(f"{name}, num_splits=1", attention)
    without_num_splits = FusedAttention(f"{name} without num_splits", partial(_without_num_splits, attention))
    return [
        way
        for one in (with_one_split, without_num_splits)
        for way in (one, FusedAttention(one.description, partial(_without_cu_seq_k, one.attention)))
    ]


def _without_cu_seq_k(attention: VarlenAttention, *arguments: Any, **options: Any) -> torch.Tensor:
    query, key, value, cu_seq_q, _, *bounds = arguments
    return attention(query, key, value, cu_seq_q, None, *bounds, **options)


def _without_num_splits(attention: VarlenAttention, *arguments: Any, num_splits: int, **options: Any) -> torch.Tensor:
    return attention(*arguments, **options)


def first_right(ways: Sequence[FusedAttention], device: torch.device, dtype: torch.dtype) -> FusedAttention:
    """Return the first that computes what the reference does, aligned at the end of each sequence.

    Raises:
        NoFusedAttention: none does; says each one's reason once.
    """
    reasons: dict[str, None] = {}
    for way in ways:
        try:
            errors = errors_of(way.attention, device, dtype)
        # A kernel that is compiled here fails in the ways of its compiler.
        except Exception as refusal:
            reasons[str(refusal).partition("\n")[0]] = None
            wait_for(device)
            continue
        # Not by the greatest: NaN is greater than nothing.
        if wrong := [error for error in errors if not error <= _PROBE_TOLERANCES.get(dtype, _PROBE_TOLERANCE)]:
            reasons[f"its numbers are off by {wrong[0]:.1e}"] = None
            continue
        return way
    raise NoFusedAttention("; ".join(reasons))
