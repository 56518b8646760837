"""Decoder layers whose additions to the residual stream are one kernel with the norm that follows each.

A layer that norms before its attention and before its MLP, as Llama's does, adds twice; after each addition comes a
norm, the layer's own or the next layer's. Whether a layer is of this form is not guessed by its name: it is compared
with ours, with something simple in place of attention and MLP.
"""

import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn

from specgate.errors import reason_of

AddRmsNorm = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], tuple[torch.Tensor, torch.Tensor]]
"""Called as ``elementwise.add_rms_norm``."""
_NORMS, _BLOCKS = ("input_layernorm", "post_attention_layernorm"), ("self_attn", "mlp")
_PASSED_ON = frozenset(
    {
        "attention_mask", "cache_position", "hidden_states", "kwargs", "past_key_value", "past_key_values",
        "position_embeddings", "position_ids", "use_cache",
    }
)  # fmt: skip
"""What a layer may take: what it does not look at itself."""
_ROUNDINGS = 4
"""By which a result may differ: models round up to three times where we round once."""
_log = logging.getLogger(__name__)


def numbers(width: int, like: torch.Tensor) -> torch.Tensor:
    """Return four rows of numbers that are all different, [1, 4, width], of the device and dtype of ``like``."""
    return torch.arange(4 * width, device=like.device).mul(0.7).sin().to(like.dtype).view(1, 4, width)


@torch.inference_mode()
def are_same(own: Callable[[], Sequence[torch.Tensor]], ours: Callable[[], Sequence[torch.Tensor]]) -> bool:
    """Return whether both compute the same, up to rounding; not where one of them fails."""
    try:
        pairs = list(zip(own(), ours(), strict=True))
        return all(one.shape == other.shape and _is_near(other.float(), one.float(), one.dtype) for one, other in pairs)
    # A module with these names may be anything, answer anything, and a compiler may be missing.
    except Exception as error:
        _log.info("not fused: %s", reason_of(error))
        return False


def _is_near(served: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> bool:
    return bool((served - expected).norm() <= _ROUNDINGS * torch.finfo(dtype).eps * expected.norm())


def fuse_residuals(model: nn.Module, add_rms_norm: AddRmsNorm) -> None:
    """Fuse the layers of ``model`` that have this form. Their norms were made torch's before, see ``fuse_norms``."""
    for layers in (one for one in model.modules() if isinstance(one, nn.ModuleList)):
        fused = [_fused(layer, add_rms_norm) for layer in layers]
        for one, other in pairwise(fused):
            if one is not None and other is not None:
                one.next_norm = other.input_norm
        for layer, one in zip(layers, fused, strict=True):
            if one is not None:
                one.input_norm.stand_in()
                layer.forward = one


class _Norm:
    """A norm that may be known already, from the addition that made its input."""

    def __init__(self, module: nn.Module) -> None:
        self._module: Any = module
        self._own = cast("partial[torch.Tensor]", self._module.forward)
        self.weight: torch.Tensor = self._own.keywords["weight"]
        self.epsilon: float = self._own.keywords["eps"]
        self._known: tuple[torch.Tensor, torch.Tensor] | None = None

    def stand_in(self) -> None:
        self._module.forward = self

    def know(self, rows: torch.Tensor, normed: torch.Tensor) -> None:
        self._known = rows, normed

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        known, self._known = self._known, None
        return known[1] if known is not None and rows is known[0] else self._own(rows)


class _Layer:
    """What stands for a layer's forward."""

    def __init__(self, layer: nn.Module, add_rms_norm: AddRmsNorm) -> None:
        self._own, self._layer, self._add_rms_norm = layer.forward, layer, add_rms_norm
        self.input_norm = _Norm(layer.get_submodule(_NORMS[0]))
        self._post_norm = _Norm(layer.get_submodule(_NORMS[1]))
        self.next_norm: _Norm | None = None

    def __call__(self, hidden_states: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        if arguments:
            return self._own(hidden_states, *arguments, **options)
        layer: Any = self._layer
        attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **options)
        hidden, normed = self._add(hidden_states, attended, self._post_norm)
        fed = layer.mlp(normed)
        if self.next_norm is None:
            return hidden + fed
        hidden, normed = self._add(hidden, fed, self.next_norm)
        self.next_norm.know(hidden, normed)
        return hidden

    def _add(self, hidden: torch.Tensor, added: torch.Tensor, norm: _Norm) -> tuple[torch.Tensor, torch.Tensor]:
        return self._add_rms_norm(hidden, added, norm.weight, norm.epsilon)


def _fused(layer: nn.Module, add_rms_norm: AddRmsNorm) -> _Layer | None:
    parts = dict(layer.named_children())
    if not parts.keys() >= {*_NORMS, *_BLOCKS} or not all(_is_torchs(parts[name]) for name in _NORMS):
        return None
    if not inspect.signature(layer.forward).parameters.keys() <= _PASSED_ON:
        return None
    # Weights of its own, such as Doge's on the residual stream, may be too close to 1 to be seen in short formats.
    if any(True for _ in layer.parameters(recurse=False)):
        return None
    fused = _Layer(layer, add_rms_norm)
    rows = numbers(len(fused.input_norm.weight), fused.input_norm.weight)
    with _simple(parts["self_attn"], _attended), _simple(parts["mlp"], _fed):
        is_same = are_same(lambda: [layer(hidden_states=rows)], lambda: [fused(rows)])
    return fused if is_same else None


def _is_torchs(norm: nn.Module) -> bool:
    return isinstance(norm.forward, partial) and norm.forward.func is F.rms_norm


def _attended(hidden_states: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
    return hidden_states.flip(-1) * 0.5, None


def _fed(rows: torch.Tensor) -> torch.Tensor:
    return rows.roll(1, -1) * 2


@contextmanager
def _simple(block: Any, forward: Callable[..., Any]) -> Iterator[None]:
    before = vars(block).get("forward")
    block.forward = forward
    try:
        yield
    finally:
        del block.forward
        if before is not None:
            block.forward = before
