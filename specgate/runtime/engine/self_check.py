"""The check that ends every load: the serving path must give the model's own logits.

Some architectures ignore ``AttentionInterface`` or add position biases of their own; over a ragged batch they are
silently wrong. So a ragged forward in two steps, on the very runner that will serve, is compared with the model's
own eager forward: several sequences, past 256 tokens and past any sliding window.
"""

import logging
from collections.abc import Sequence

import torch

from specgate.errors import ModelLoadError, SpecgateError, UnsupportedArchitecture
from specgate.runtime.attention import interface
from specgate.runtime.attention.interface import Kernel
from specgate.runtime.attention.paged_sdpa import PagedSdpaKernel
from specgate.runtime.batch_sampler import check_finite
from specgate.runtime.cpu.decoder import DecoderKernel
from specgate.runtime.cpu.packing import is_float32_on_cpu, pack_layers
from specgate.runtime.cuda.fused_layers import fuse_layers
from specgate.runtime.decoder_form import NotOfThisForm
from specgate.runtime.engine.few_rows import few_rows_of, serve_few_rows
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.kv_pages import KVSequence
from specgate.runtime.loading import LoadedModel, Progress
from specgate.runtime.norms import fuse_norms
from specgate.runtime.scheduler import Rows
from specgate.runtime.short_head import NEVER

_log = logging.getLogger(__name__)

# Relative Frobenius error. Correct float32 paths stay below 1e-6; bfloat16 rounds to 8 bits in every layer, float16
# to 11.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
_COMPARED_ROWS = 16
_FEW_ROWS = (1, 4, _COMPARED_ROWS)
# Others need a state of their own, or a mask that shows only far after the rows compared here.
_LAYER_TYPES = frozenset({"full_attention", "sliding_attention", "attention"})
_FORWARD_ERRORS = (TypeError, ValueError, AttributeError, RuntimeError, IndexError)


def prepare(
    loaded: LoadedModel,
    kv_tokens: int,
    page_size: int,
    progress: Progress,
    kernels: Sequence[Kernel] | None = None,
    *,
    packs: bool = True,
) -> ModelRunner:
    """Return a runner whose logits were compared with the model's own.

    Args:
        kernels: ways to compute attention, the most wanted first; the first one that passes serves.
        packs: on the CPU in float32, pack the weights, and run a decoder of Llama's form in one call.

    Raises:
        UnsupportedArchitecture: the paged attention does not compute what the model asks for.
        ModelLoadError: the model's own forward fails.
    """
    progress("self-check", 0, 1)
    _refuse_by_config(loaded)
    rows = _token_ids(loaded, _lengths(loaded, kv_tokens, page_size))
    expected = [_eager_logits(loaded, ids) for ids in rows]
    _switch_attention(loaded)
    one_call = _packed(loaded) if packs else []
    fuse_norms(loaded.model)
    fuse_layers(loaded.model)
    *wanted, last = [*one_call, *(kernels or [PagedSdpaKernel()])]
    for kernel in wanted:
        try:
            runner = _checked(ModelRunner(loaded, kv_tokens, page_size, kernel), rows, expected)
            break
        except UnsupportedArchitecture as error:
            _log.warning("attention by %s is not used: %s", kernel.name, error)
            last.why = f"{kernel.name} does not serve {loaded.architecture}: {error}"
    else:
        runner = _checked(ModelRunner(loaded, kv_tokens, page_size, last), rows, expected)
    if (few_rows := few_rows_of(runner)) is not None:
        serve_few_rows(runner, few_rows, lambda: _checked(runner, rows, expected))
    progress("self-check", 1, 1)
    return runner


def _packed(loaded: LoadedModel) -> list[Kernel]:
    """Pack a model's weights where that is the way here; return what runs all its layers in one call, if it does."""
    if not is_float32_on_cpu(loaded.model) or not pack_layers(loaded.model):
        return []
    try:
        return [DecoderKernel(loaded)]
    except NotOfThisForm as reason:
        _log.info("%s runs layer by layer: %s", loaded.architecture, reason)
        return []


def _checked(runner: ModelRunner, rows: Sequence[list[int]], expected: Sequence[torch.Tensor]) -> ModelRunner:
    actual = _paged_logits(runner, rows)
    _refuse_lost_windows(runner)
    each = _COMPARED_ROWS // len(expected)
    compare(runner.loaded, [*expected, expected[0], *(logits[-each:] for logits in expected)], actual)
    return runner


def _layer_types(loaded: LoadedModel) -> tuple[str, ...]:
    types = getattr(loaded.model.config.get_text_config(), "layer_types", None) or ()
    return tuple(kind for layer, kind in enumerate(types) if layer not in loaded.without_attention)


def _refuse_by_config(loaded: LoadedModel) -> None:
    unknown = sorted(set(_layer_types(loaded)) - _LAYER_TYPES)
    if unknown:
        raise UnsupportedArchitecture(
            f"{loaded.architecture} has layers of the type {', '.join(unknown)}, which are not computed here"
        )
    # Llama 4 counts rows instead of reading positions, and by default only from the 8192nd on.
    if getattr(loaded.model.config.get_text_config(), "attn_temperature_tuning", False):
        raise UnsupportedArchitecture(f"{loaded.architecture} scales queries by their place in the batch")


def _refuse_lost_windows(runner: ModelRunner) -> None:
    """Refuse windows that are in the model's own mask alone: bfloat16's rounding can hide a few lost rows."""
    declared = _layer_types(runner.loaded).count("sliding_attention")
    if runner.loaded.sliding_window and runner.last_num_windows < declared:
        raise UnsupportedArchitecture(f"{runner.loaded.architecture} has windows that it does not pass to attention")


def kv_tokens_to_check(loaded: LoadedModel, page_size: int) -> int:
    """Return how many tokens the pages must hold for nothing to be left out of the check."""
    return (-(-_longest(loaded) // page_size) + 2) * page_size


def _longest(loaded: LoadedModel) -> int:
    window = loaded.sliding_window if loaded.sliding_window < loaded.context_length else 0
    return min(max(272, window + 16), loaded.context_length)


def _lengths(loaded: LoadedModel, kv_tokens: int, page_size: int) -> list[int]:
    """One long sequence, two short ones; no longer than the context and the pages allow."""
    num_pages = max(1, kv_tokens // page_size)
    longest = min(_longest(loaded), max(1, num_pages - 2) * page_size)
    lengths = [longest, min(37, longest), min(9, longest)]
    return lengths[: min(3, num_pages)]


def _token_ids(loaded: LoadedModel, lengths: list[int]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(loaded.vocab_size, (n,), generator=generator).tolist() for n in lengths]


@torch.inference_mode()
def _eager_logits(loaded: LoadedModel, ids: list[int]) -> torch.Tensor:
    """Return the model's own logits of the last rows, [rows, vocabulary]."""
    batch = torch.tensor([ids], device=loaded.device)
    try:
        logits: torch.Tensor = loaded.model(input_ids=batch, use_cache=False).logits
    except _FORWARD_ERRORS as error:
        raise ModelLoadError(f"{loaded.name}: the model's own forward fails: {error}") from error
    return logits[0, -_COMPARED_ROWS:, : loaded.vocab_size]


def _switch_attention(loaded: LoadedModel) -> None:
    interface.register()
    try:
        loaded.model.set_attn_implementation(interface.NAME)
    except (ValueError, TypeError, AttributeError) as error:
        raise UnsupportedArchitecture(
            f"{loaded.architecture} does not let its attention be replaced (AttentionInterface)"
        ) from error


def _paged_logits(runner: ModelRunner, rows: Sequence[list[int]]) -> list[torch.Tensor]:
    """Two ragged steps: all but the last rows of each sequence, then the rest of all of them at once.

    The last rows of the first one run once more, a few at a time, and then few of all of them together: few rows may
    be multiplied in another way.
    """
    sequences = [runner.pool.open(ids, len(ids)) for ids in rows]
    for sequence in sequences:
        runner.pool.extend(sequence, len(sequence))
    heads = [Rows(s, max(0, len(s) - _COMPARED_ROWS), 0) for s in sequences]
    try:
        _forward(runner, [head for head in heads if head.num_rows])
        tails = [Rows(s, len(s) - s.num_cached, len(s) - s.num_cached) for s in sequences]
        logits = [*_forward(runner, tails), _in_few_rows(runner, sequences[0], tails[0].num_rows)]
        return logits + _together(runner, tails)
    finally:
        _free(runner, sequences)


def _in_few_rows(runner: ModelRunner, sequence: KVSequence, num_rows: int) -> torch.Tensor:
    sequence.num_cached -= num_rows
    logits: list[torch.Tensor] = []
    for width in _FEW_ROWS:
        if (count := min(width, len(sequence) - sequence.num_cached)) > 0:
            logits += _forward(runner, [Rows(sequence, count, count)])
    return torch.cat(logits)


def _together(runner: ModelRunner, tails: Sequence[Rows]) -> list[torch.Tensor]:
    counts = [min(_COMPARED_ROWS // len(tails), tail.num_rows) for tail in tails]
    for tail, count in zip(tails, counts, strict=True):
        tail.sequence.num_cached -= count
    return _forward(runner, [Rows(tail.sequence, count, count) for tail, count in zip(tails, counts, strict=True)])


def _forward(runner: ModelRunner, batch: list[Rows]) -> list[torch.Tensor]:
    architecture = runner.loaded.architecture
    try:
        logits = runner.forward(batch) if batch else []
        check_finite(logits)
    except SpecgateError as error:
        raise UnsupportedArchitecture(f"{architecture}: {error}") from error
    # A kernel that is compiled for this model fails in the ways of its compiler.
    except Exception as error:
        raise UnsupportedArchitecture(f"{architecture} fails on a ragged batch: {error}") from error
    if batch and not runner.last_num_calls:
        raise UnsupportedArchitecture(f"{architecture} ignores AttentionInterface: it has an attention of its own")
    return logits


def _free(runner: ModelRunner, sequences: Sequence[KVSequence]) -> None:
    for sequence in sequences:
        runner.pool.free(sequence)


def compare(loaded: LoadedModel, expected: Sequence[torch.Tensor], actual: Sequence[torch.Tensor]) -> None:
    """Raise UnsupportedArchitecture if the logits of some rows, [rows, vocabulary] each, are too far apart."""
    reference, served = torch.cat(list(expected)).float(), torch.cat(list(actual)).float()
    # The huge ones of tokens that a short head has not would hide any error of the others.
    known = reference > NEVER
    error = float((served - reference).norm() / reference[known].norm().clamp_min(1e-12))
    limit = TOLERANCE[loaded.dtype]
    if not error <= limit:
        raise UnsupportedArchitecture(
            f"{loaded.architecture}: logits over KV pages differ from the model's own by {error:.1e}, "
            f"the limit is {limit:.0e}"
        )
