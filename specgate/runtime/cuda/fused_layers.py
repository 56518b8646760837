"""Fewer kernels a decoder layer, in unchanged HuggingFace models: on a GPU a small one takes as long as launching it.

A Llama layer's 26 kernels become 10: products of the same input are one product, and rotary position embedding, the
gate of an MLP, the writing of keys and values, and an addition with the norm after it are one kernel each. How an MLP
gates and a model rotates is not guessed by a name: it is compared with the model's own on some rows, and left alone
where it is another way. The self-check that ends every load looks at this very path.
"""

import importlib
import inspect
import logging
from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn

from specgate.runtime.cuda.fused_residuals import are_same, fuse_residuals, numbers
from specgate.runtime.cuda.joined import joined_weight

_ROTATION = "apply_rotary_pos_emb"
_SCALES = (0.3, 3.0)
"""Of the rows that are compared: activations are alike around 0."""
_log = logging.getLogger(__name__)


def fuse_layers(model: nn.Module) -> None:
    """Let the layers of a model on CUDA take fewer kernels, where Triton is there."""
    if next(model.parameters()).device.type != "cuda":
        return
    try:
        kernels = importlib.import_module("specgate.runtime.cuda.elementwise")
    except ImportError as error:
        _log.info("layers are not fused: %s", error)
        return
    fuse_with(model, kernels)


def fuse_with(model: nn.Module, kernels: Any) -> None:
    """Fuse what can be fused, by ``kernels``, a module like ``elementwise``."""
    for module in model.modules():
        _fuse_rotation(module, kernels.rotated)
        _fuse_gate(module, kernels.silu_times)
        _share_product(module, ("q_proj", "k_proj", "v_proj"))
    fuse_residuals(model, kernels.add_rms_norm)
    if next(model.parameters()).device.type == "cuda":
        # The weights were copied. Their old memory must be free before pages are sized by free memory.
        torch.cuda.empty_cache()


class _Product:
    """Several linear layers of the same input as one product; their weights become parts of one matrix."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self._sizes = [layer.out_features for layer in layers]
        self.weight = joined_weight(layers)
        has_bias = cast(torch.Tensor | None, layers[0].bias) is not None
        self.bias = torch.cat([layer.bias for layer in layers]) if has_bias else None
        self._input: torch.Tensor | None = None
        self._parts: Sequence[torch.Tensor] = ()

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return F.linear(rows, self.weight, self.bias)

    def part(self, index: int) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return what stands for one of the layers: the first that is asked computes for all, until the last was.

        It knows its input by identity: a model that changed it in place between two of them would be found by the
        self-check.
        """

        def forward(rows: torch.Tensor) -> torch.Tensor:
            if rows is not self._input:
                self._input, self._parts = rows, self(rows).split(self._sizes, -1)
            found = self._parts[index]
            if index == len(self._sizes) - 1:
                self._input, self._parts = None, ()
            return found

        return forward


def _share_product(module: nn.Module, names: Sequence[str]) -> None:
    layers = _linear_layers(module, names)
    if layers is None:
        return
    product = _Product(layers)
    for index, layer in enumerate(layers):
        setattr(layer, "forward", product.part(index))  # noqa: B010


def _linear_layers(module: nn.Module, names: Sequence[str]) -> list[nn.Linear] | None:
    """Return the layers of these names if they are plain, all with a bias or none, of one width; None otherwise."""
    layers = [getattr(module, name, None) for name in names]
    if any(type(layer) is not nn.Linear for layer in layers):
        return None
    plain = cast(list[nn.Linear], layers)
    if any("forward" in vars(layer) for layer in plain):
        return None
    if len({(layer.in_features, layer.bias is None, layer.weight.dtype) for layer in plain}) > 1:
        return None
    return plain


def _fuse_gate(module: nn.Module, silu_times: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Fuse an MLP of the form down(silu(gate(x)) * up(x))."""
    layers = _linear_layers(module, ("gate_proj", "up_proj"))
    down = getattr(module, "down_proj", None)
    if layers is None or type(down) is not nn.Linear or layers[0].out_features != layers[1].out_features:
        return

    def apart(rows: torch.Tensor) -> torch.Tensor:
        return down(silu_times(torch.cat([layer(rows) for layer in layers], -1)))

    many = [numbers(layers[0].in_features, layers[0].weight) * scale for scale in _SCALES]
    if are_same(lambda: [module(rows) for rows in many], lambda: [apart(rows) for rows in many]):
        product = _Product(layers)
        module.forward = lambda rows: down(silu_times(product(rows)))


def _fuse_rotation(module: nn.Module, rotated: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Let a module's forward find our function where it looks for the one of its file that turns both halves."""
    forward = type(module).forward
    if not inspect.isfunction(forward) or _ROTATION not in forward.__code__.co_names:
        return
    own, dim = forward.__globals__.get(_ROTATION), getattr(module, "head_dim", None)
    if own is None or not isinstance(dim, int) or dim % 2:
        return
    like = next(module.parameters())
    query, key, cos, sin = (numbers(heads * dim, like).view(1, 4, heads, dim) for heads in (4, 2, 1, 1))
    query, key, cos, sin = query.transpose(1, 2), key.transpose(1, 2), cos[:, :, 0], sin[:, :, 0].flip(-1)
    if not are_same(lambda: own(query, key, cos, sin), lambda: rotated(query, key, cos, sin)):
        return

    def turned(*tensors: torch.Tensor, **options: Any) -> Any:
        # Some turn a part of each head alone, which their angles show.
        is_whole = len(tensors) == 4 and not options and tensors[2].shape[-1] == tensors[0].shape[-1]
        return rotated(*tensors) if is_whole else own(*tensors, **options)

    names = {**forward.__globals__, _ROTATION: turned}
    patched = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
    patched.__kwdefaults__ = forward.__kwdefaults__
    module.forward = MethodType(patched, module)
