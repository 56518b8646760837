"""Layer skip: a model's own weights with blocks left out, as a draft of itself (Zhang et al., "Draft & Verify", 2023).

A decoder layer is two blocks, attention and MLP, each added to the residual stream. A block that is left out adds
nothing: it has no weights in memory, and attention that is left out no keys and values. Which ones are left out a JSON
file says:

    {"num_layers": 24, "attention": [7, 9], "mlp": [9]}
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from specgate.errors import InvalidArgument, UnsupportedArchitecture

MLP_NAMES = ("mlp", "block_sparse_moe", "feed_forward")


class LayerSkip(NamedTuple):
    """The layers, from 0, whose attention and whose MLP are left out."""

    attention: frozenset[int]
    mlp: frozenset[int]

    @property
    def whole(self) -> frozenset[int]:
        """Layers of which nothing is left."""
        return self.attention & self.mlp


class NoAttention(nn.Module):
    """In the place of attention that is left out: adds nothing and has no weights."""

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
        return torch.zeros_like(hidden_states), None


class NoMlp(nn.Module):
    """In the place of an MLP that is left out."""

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.zeros_like(hidden_states)


class NoLayer(nn.Module):
    """In the place of a layer of which nothing is left, while the weights of the others are loaded by their numbers."""

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return hidden_states


def read_skip(path: str, name: str) -> LayerSkip:
    """Return what a file says to leave out of the model ``name``.

    Raises:
        InvalidArgument: the file cannot be read, is for another number of layers, names a layer that there is
            not, or leaves nothing to draft with; says which.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument("--skip", f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InvalidArgument("--skip", f"{path} is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise InvalidArgument("--skip", f"{path} is no JSON object")
    known = ("num_layers", *LayerSkip._fields)
    if unknown := sorted(content.keys() - {*known}):
        raise InvalidArgument("--skip", f"{path}: {unknown[0]!r} is none of {', '.join(known)}")
    num_layers = int(AutoConfig.from_pretrained(name, trust_remote_code=False).get_text_config().num_hidden_layers)
    if content.get("num_layers") != num_layers:
        problem = f"{path}: num_layers is {content.get('num_layers')!r}, {name} has {num_layers} layers"
        raise InvalidArgument("--skip", problem)
    return _checked({block: content.get(block, []) for block in LayerSkip._fields}, num_layers, path)


def _checked(content: dict[str, Any], num_layers: int, path: str) -> LayerSkip:
    """Return the blocks of a file. Raises InvalidArgument, see ``read_skip``."""
    for block, layers in content.items():
        if not (isinstance(layers, list) and all(type(layer) is int for layer in layers)):
            raise InvalidArgument("--skip", f"{path}: {block} is {layers!r}, not a list of layer numbers")
        if wrong := [layer for layer in layers if not 0 <= layer < num_layers]:
            raise InvalidArgument("--skip", f"{path}: {block} names layer {wrong[0]}, there are 0 to {num_layers - 1}")
    skip = LayerSkip(*(frozenset(content[block]) for block in LayerSkip._fields))
    if not any(skip):
        raise InvalidArgument("--skip", f"{path} leaves out nothing")
    if len(skip.attention) == num_layers:
        left = "nothing" if len(skip.mlp) == num_layers else "no attention"
        raise InvalidArgument("--skip", f"{path} leaves out so much that {left} is left")
    return skip


def load_without(name: str, config: PretrainedConfig, skip: LayerSkip, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Load a model without these blocks: weights of theirs are not read.

    Args:
        options: of ``from_pretrained``.

    Returns:
        The model, its ``config`` telling of the layers that are left, and what transformers says of the loading.

    Raises:
        UnsupportedArchitecture: its blocks are not where they are in other models.
    """
    architecture: Any = AutoModelForCausalLM._model_mapping[type(config)]

    def build(self: Any, config: PretrainedConfig, *arguments: Any, **keywords: Any) -> None:
        architecture.__init__(self, config, *arguments, **keywords)
        _leave_out(self, skip)

    names = {"__module__": architecture.__module__, "_keys_to_ignore_on_load_unexpected": ["."]}
    cut: Any = type(architecture.__name__, (architecture,), {"__init__": build, **names})
    model, info = cut.from_pretrained(name, config=config, output_loading_info=True, **options)
    model.__class__ = architecture
    _close_ranks(model)
    return model, info


def layers_without_attention(model: Any) -> frozenset[int]:
    """Return the layers, as they are numbered now, that have no attention."""
    layers = _decoder_layers(model)
    return frozenset(i for i, layer in enumerate(layers) if any(type(one) is NoAttention for one in layer.children()))


def _leave_out(model: Any, skip: LayerSkip) -> None:
    layers = _decoder_layers(model)
    for index in skip.attention - skip.whole:
        setattr(layers[index], _attention_name(model, layers[index]), NoAttention())
    for index in skip.mlp - skip.whole:
        setattr(layers[index], _mlp_name(model, layers[index]), NoMlp())
    for index in skip.whole:
        layers[index] = NoLayer()


def _close_ranks(model: Any) -> None:
    """Take out the layers of which nothing is left, and correct the configuration."""
    layers, config = _decoder_layers(model), model.config.get_text_config()
    kept = [index for index, layer in enumerate(layers) if type(layer) is not NoLayer]
    for index in sorted(set(range(len(layers))) - set(kept), reverse=True):
        del layers[index]
    # What a layer is by its number, such as ``layer_types`` and SmolLM3's ``no_rope_layers``.
    for name, value in config.to_dict().items():
        if "layer" in name and isinstance(value, list) and len(value) == config.num_hidden_layers:
            setattr(config, name, [value[index] for index in kept])
    config.num_hidden_layers = len(kept)


def _decoder_layers(model: Any) -> nn.ModuleList:
    count = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count and any(map(_has_attention, module)):
            return module
    raise UnsupportedArchitecture(f"{type(model).__name__}: its decoder layers are not found, so none can be left out")


def _has_attention(layer: nn.Module) -> bool:
    return any(hasattr(child, "layer_idx") or type(child) is NoAttention for child in layer.children())


def _attention_name(model: Any, layer: nn.Module) -> str:
    names = [name for name, child in layer.named_children() if hasattr(child, "layer_idx")]
    if len(names) != 1:
        raise UnsupportedArchitecture(f"{type(model).__name__}: its attention cannot be left out by itself")
    return names[0]


def _mlp_name(model: Any, layer: nn.Module) -> str:
    for name in MLP_NAMES:
        if isinstance(getattr(layer, name, None), nn.Module):
            return name
    raise UnsupportedArchitecture(f"{type(model).__name__}: its MLP is no block of its own; leave out whole layers")
