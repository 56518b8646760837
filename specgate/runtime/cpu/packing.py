"""A loaded model's plain products over panels: packed once, and what the weights took before is given back."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn

from specgate import cpu_library
from specgate.cpu_library import InstructionSet
from specgate.runtime.cpu import panels
from specgate.runtime.cpu.panels import Panels, pack
from specgate.runtime.stored_weights import Codes, put_away, stand_in, weight_of

COMPARED_ROWS = (1, 2, 4, 8)
"""A token alone, and a verification: what a forward's cost must not grow with."""
LEAST_TIMED_NUMBERS = 1 << 18
"""Of a weight that is timed. With a smaller one the time is that of calling what multiplies, the choice another one at
every load, and the fewest calls are those over panels: one for all layers."""
TIMED_NUMBERS = 16 << 20
"""How many of a model's weights are timed: more than a core's own cache holds."""
GAIN = 1.05
"""How much faster torch's product must be, so that noise seldom decides."""
_REPEATS = 5
"""The best of several turns, so that a busy moment of the machine does not decide."""
_DTYPES = (torch.float32, torch.bfloat16, torch.int8)
_log = logging.getLogger(__name__)

Timer = Callable[[bool, int], float]
"""Seconds that some products take, by torch or over panels, for so many rows."""


def pack_layers(model: nn.Module) -> bool:
    """Pack the plain linear layers of a model on the CPU; False: torch's own ways serve.

    That is where there is no library for this processor, or where torch's product is faster for a row and for several.
    """
    layers = [layer for layer in model.modules() if _is_plain(layer)]
    if cpu_library.instruction_set() is InstructionSet.NONE or not layers:
        return False
    weights = [weight_of(layer) for layer in layers]
    # torch would have to widen what is kept short in every call.
    plain = [weight for weight in weights if isinstance(weight, torch.Tensor) and weight.dtype is torch.float32]
    if len(plain) == len(weights) and is_torch_faster(plain):
        _log.info("torch's own products serve: they are the faster ones on this processor")
        return False
    before = bytes_of(model)
    packed: dict[int, tuple[Panels, nn.Parameter]] = {}
    for layer in layers:
        _pack(layer, packed)
    for module in model.modules():
        if type(module) is nn.Embedding:
            _pack_embedding(module, packed)
    _let_go_of_files(model)
    _log.info("weights are packed: %.0f MB, %.0f before", bytes_of(model) / 1e6, before / 1e6)
    return True


def is_float32_on_cpu(model: nn.Module) -> bool:
    """Return whether a model is one for which a row's time is that of calling and of torch's plain products."""
    first = next(model.parameters())
    return first.device.type == "cpu" and first.dtype is torch.float32


def panels_of(layer: nn.Module) -> Panels | None:
    """Return what a layer was packed into; None: it was not."""
    found: Panels | None = vars(layer).get("panels")
    return found


def bytes_of(model: nn.Module) -> int:
    """Return how many bytes the weights take in memory; those that several share count once."""
    held: dict[int, int] = {}
    for module in model.modules():
        stored = vars(module).get("stored_weight")
        own = [*module.parameters(recurse=False), *(stored if isinstance(stored, Codes) else [stored])]
        own += panels_of(module) or ()
        for tensor in own:
            if isinstance(tensor, torch.Tensor):
                held[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(held.values())


@torch.inference_mode()
def is_torch_faster(weights: Sequence[torch.Tensor], timer: Timer | None = None) -> bool:
    """Return whether torch multiplies so much faster by some of these weights that panels would lose at every width."""
    timed = [weight.float() for weight in _some_of([one for one in weights if one.numel() >= LEAST_TIMED_NUMBERS])]
    if not timed:
        return False
    time_it = timer or partial(_seconds, timed, [pack(weight) for weight in timed])
    return all(
        _best_s(time_it, True, num_rows) * GAIN < _best_s(time_it, False, num_rows) for num_rows in COMPARED_ROWS
    )


def _some_of(weights: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield weights of every shape, about as many numbers of each as of any other; of a large one its first rows."""
    shapes: dict[torch.Size, list[torch.Tensor]] = {}
    for weight in weights:
        shapes.setdefault(weight.shape, []).append(weight)
    for alike in shapes.values():
        room = TIMED_NUMBERS // len(shapes)
        for weight in alike:
            some = weight[: max(room // weight[0].numel(), 1)]
            yield some
            room -= some.numel()
            if room <= 0:
                break


def _best_s(time_it: Timer, is_torch: bool, num_rows: int) -> float:
    return min(time_it(is_torch, num_rows) for _ in range(_REPEATS))


def _seconds(weights: Sequence[torch.Tensor], packed: Sequence[Panels], is_torch: bool, num_rows: int) -> float:
    rows = {one.in_features: torch.ones(num_rows, one.in_features) for one in packed}
    start_s = time.perf_counter()
    for weight, one in zip(weights, packed, strict=True):
        if is_torch:
            F.linear(rows[one.in_features], weight)
        else:
            panels.linear(one, rows[one.in_features])
    return time.perf_counter() - start_s


def _is_plain(layer: nn.Module) -> bool:
    if type(layer) is not nn.Linear or layer.weight.device.type != "cpu":
        return False
    return layer.weight.dtype is torch.float32 and weight_of(layer).dtype in _DTYPES


def _pack(layer: Any, packed: dict[int, tuple[Panels, nn.Parameter]]) -> None:
    weight = weight_of(layer)
    key = weight.data_ptr()
    if key not in packed:
        packed[key] = pack(weight), stand_in(weight)
    shared, stands_in = packed[key]
    layer.panels = shared.with_bias(layer.bias)
    put_away(layer, None, stands_in)
    layer.forward = partial(panels.linear, layer.panels)


def _pack_embedding(layer: Any, packed: dict[int, tuple[Panels, nn.Parameter]]) -> None:
    """Let an embedding look up the panels of a product that shares its weight. Codes are packed in any case."""
    weight = weight_of(layer)
    if isinstance(weight, Codes) and weight.data_ptr() not in packed:
        packed[weight.data_ptr()] = pack(weight), stand_in(weight)
    if shared := packed.get(weight.data_ptr()):
        layer.panels = shared[0]
        put_away(layer, None, shared[1])
        layer.forward = partial(panels.looked_up, layer.panels)


def _let_go_of_files(model: nn.Module) -> None:
    """Copy what was not packed: loaded weights are parts of mapped files, and one part keeps all of a file.

    Where more was left than packed the copies would take more than that gives back, and all stays as it is.
    """
    own = [one.data for one in model.parameters() if one.untyped_storage().nbytes() >= one.nbytes]
    # (Codes are no parts of a file.)
    kept = [vars(module).get("stored_weight") for module in model.modules()]
    stored = [one if isinstance(one, torch.Tensor) else None for one in kept]
    left = {one.data_ptr(): one for one in (*own, *stored) if one is not None}
    if 2 * sum(one.nbytes for one in left.values()) > bytes_of(model):
        return
    copies = {address: one.clone() for address, one in left.items()}
    for parameter in model.parameters():
        parameter.data = copies.get(parameter.data_ptr(), parameter.data)
    for module, weight in zip(list(model.modules()), stored, strict=True):
        if weight is not None:
            cast(Any, module).stored_weight = copies[weight.data_ptr()]
