"""What a decoder of Llama's form is, and where its weights are: the one place that faster ways to run one look into.

A layer of this form norms, attends with rotated queries and keys, adds, norms, gates an MLP by SiLU, and adds. Modules
are known by their names and kinds. What a name does not show, such as a factor on the residual stream, shows when a
forward is compared with the model's own: every user of a form does that.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import nn

from specgate.runtime.layer_skip import NoAttention, NoMlp
from specgate.runtime.short_head import ShortHead

T = TypeVar("T")
_EPSILONS = ("variance_epsilon", "eps")


class NotOfThisForm(Exception):
    """Says what about a model is another way."""


@dataclass(frozen=True, slots=True)
class Norm:
    """A root-mean-square norm with a weight."""

    weight: torch.Tensor
    epsilon: float


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """``window`` is how many tokens a row sees, itself among them; 0 is all. Norms of each head, or none."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    out: nn.Linear
    query_norm: Norm | None
    key_norm: Norm | None
    head_dim: int
    scale: float
    window: int


@dataclass(frozen=True, slots=True)
class MlpForm:
    gate: nn.Linear
    up: nn.Linear
    down: nn.Linear


@dataclass(frozen=True, slots=True)
class LayerForm:
    """None stands for a block that was left out."""

    attention_norm: Norm
    attention: AttentionForm | None
    mlp_norm: Norm
    mlp: MlpForm | None


@dataclass(frozen=True, slots=True)
class DecoderForm:
    """A whole decoder. ``rotary`` is called as HuggingFace's, with something like the rows and with positions.

    ``short_head``: what ``head`` is a part of where it has not all tokens.
    """

    embedding: nn.Embedding
    layers: tuple[LayerForm, ...]
    final_norm: Norm
    head: nn.Linear
    short_head: ShortHead | None
    rotary: nn.Module
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    epsilon: float


def form_of(model: Any, *, takes_short_head: bool = False) -> DecoderForm:
    """Return the form of a HuggingFace causal language model.

    Args:
        takes_short_head: who asks can do with a head that has not all tokens.

    Raises:
        NotOfThisForm: it has another one.
    """
    base = getattr(model, "model", None)
    parts = _parts(base, {"embed_tokens", "layers", "norm", "rotary_emb"}, set())
    layers = tuple(_layer(layer) for layer in parts["layers"].children())
    attentions = [layer.attention for layer in layers if layer.attention]
    if not attentions:
        raise NotOfThisForm("no layer has attention")
    norms = [norm for layer in layers for norm in (layer.attention_norm, layer.mlp_norm)]
    norms += [norm for one in attentions for norm in (one.query_norm, one.key_norm) if norm]
    norms.append(norm_of(parts["norm"]))
    head = model.get_output_embeddings()
    short_head = head if takes_short_head and type(head) is ShortHead else None
    head_dim = _alike((one.head_dim for one in attentions), "sizes of heads")
    form = DecoderForm(
        embedding=_plain(parts["embed_tokens"], nn.Embedding),
        layers=layers,
        final_norm=norms[-1],
        head=_plain(short_head.rows if short_head else head, nn.Linear),
        short_head=short_head,
        rotary=parts["rotary_emb"],
        heads=_alike((one.query.out_features // head_dim for one in attentions), "numbers of heads"),
        kv_heads=_alike((one.key.out_features // head_dim for one in attentions), "numbers of heads of keys"),
        head_dim=head_dim,
        scale=_alike((one.scale for one in attentions), "scales"),
        epsilon=_alike((norm.epsilon for norm in norms), "epsilons"),
    )
    if not _fits_together(form):
        raise NotOfThisForm("its matrices do not fit together as those of this form")
    return form


@torch.inference_mode()
def angles_of(form: DecoderForm, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines of rotary position embedding, float32 [length, head_dim / 2], by HuggingFace's module.

    Raises:
        NotOfThisForm: it turns a part of each head alone, or otherwise than by halves.
    """
    device = form.embedding.weight.device
    try:
        tables = form.rotary(torch.empty(0, device=device), torch.arange(length, device=device)[None])
        halves = [table[0].float().chunk(2, -1) for table in tables]
    except (TypeError, ValueError, IndexError) as error:
        raise NotOfThisForm(f"its angles have another form: {error}") from error
    if any(one.shape != (length, form.head_dim // 2) or not one.equal(other) for one, other in halves):
        raise NotOfThisForm("it does not turn both halves of a head together")
    cosines, sines = (one.contiguous() for one, _ in halves)
    return cosines, sines


def _fits_together(form: DecoderForm) -> bool:
    """Return whether each weight has the shape that its neighbours need. No later code checks that."""
    width, queries, keys = form.embedding.embedding_dim, form.heads * form.head_dim, form.kv_heads * form.head_dim
    num_tokens = len(form.short_head.token_ids) if form.short_head else form.embedding.num_embeddings
    shapes = [(form.head.weight, (num_tokens, width)), (form.final_norm.weight, (width,))]
    for layer in form.layers:
        shapes += [(norm.weight, (width,)) for norm in (layer.attention_norm, layer.mlp_norm)]
        if attention := layer.attention:
            shapes += [(attention.query.weight, (queries, width)), (attention.out.weight, (width, queries))]
            shapes += [(one.weight, (keys, width)) for one in (attention.key, attention.value)]
        if mlp := layer.mlp:
            inner = mlp.gate.out_features
            shapes += [(one.weight, (inner, width)) for one in (mlp.gate, mlp.up)]
            shapes.append((mlp.down.weight, (width, inner)))
    return form.kv_heads > 0 and form.heads % form.kv_heads == 0 and all(one.shape == shape for one, shape in shapes)


def _layer(layer: nn.Module) -> LayerForm:
    parts = _parts(layer, {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}, set())
    return LayerForm(
        attention_norm=norm_of(parts["input_layernorm"]),
        attention=None if type(parts["self_attn"]) is NoAttention else _attention(parts["self_attn"]),
        mlp_norm=norm_of(parts["post_attention_layernorm"]),
        mlp=None if type(parts["mlp"]) is NoMlp else _mlp(parts["mlp"]),
    )


def _attention(module: Any) -> AttentionForm:
    parts = _parts(module, {"q_proj", "k_proj", "v_proj", "o_proj"}, {"q_norm", "k_norm"})
    head_dim = module.head_dim
    norms = [_head_norm(parts[name], head_dim) if name in parts else None for name in ("q_norm", "k_norm")]
    if "position_ids" in inspect.signature(module.forward).parameters:
        # Perhaps only at those that are far behind what a check compares, as Ministral 3 does.
        raise NotOfThisForm("its attention looks at positions by itself")
    if getattr(module, "use_rope", True) in (False, 0):
        raise NotOfThisForm("a layer does not rotate")
    if head_dim % 2:
        raise NotOfThisForm(f"heads have {head_dim} numbers, which are no two halves")
    query, key, value, out = (_plain(parts[name], nn.Linear) for name in ("q_proj", "k_proj", "v_proj", "o_proj"))
    # Some architectures pass their configuration's window to attention, of others each layer has its own or None.
    window = getattr(module, "sliding_window", getattr(module.config, "sliding_window", None)) or 0
    return AttentionForm(query, key, value, out, norms[0], norms[1], head_dim, float(module.scaling), window)


def _mlp(module: Any) -> MlpForm:
    parts = _parts(module, {"gate_proj", "up_proj", "down_proj"}, {"act_fn"})
    numbers = torch.linspace(-4, 4, 9)
    if not torch.allclose(module.act_fn(numbers), F.silu(numbers)):
        raise NotOfThisForm("its MLP gates by another function than SiLU")
    gate, up, down = (_plain(parts[name], nn.Linear) for name in ("gate_proj", "up_proj", "down_proj"))
    return MlpForm(gate, up, down)


def norm_of(module: nn.Module) -> Norm:
    """Return a module that has one weight and an epsilon, as a root-mean-square norm has.

    Raises:
        NotOfThisForm: it has more, or less.
    """
    epsilon = next((getattr(module, name) for name in _EPSILONS if hasattr(module, name)), None)
    names = [name for name, _ in (*module.named_parameters(), *module.named_buffers(), *module.named_children())]
    weight = getattr(module, "weight", None)
    if (
        names != ["weight"]
        or not isinstance(weight, nn.Parameter)
        or weight.ndim != 1
        or not isinstance(epsilon, float)
    ):
        raise NotOfThisForm(f"{type(module).__name__} is no norm with a weight and an epsilon alone")
    return Norm(weight, epsilon)


def _head_norm(module: nn.Module, head_dim: int) -> Norm:
    norm = norm_of(module)
    if len(norm.weight) != head_dim:
        raise NotOfThisForm("it norms all heads together")
    return norm


def _parts(module: nn.Module | None, needed: set[str], possible: set[str]) -> dict[str, nn.Module]:
    """Return a module's children, if they are those that it needs, and nothing but what is possible beside them."""
    if not isinstance(module, nn.Module):
        raise NotOfThisForm("it is built in another way")
    parts = dict(module.named_children())
    own = [name for name, _ in module.named_parameters(recurse=False)]
    if missing := sorted(needed - parts.keys()):
        raise NotOfThisForm(f"{type(module).__name__} has no {', '.join(missing)}")
    if others := sorted(parts.keys() - needed - possible) + own:
        raise NotOfThisForm(f"{type(module).__name__} has {', '.join(others)}")
    return parts


Kind = TypeVar("Kind", bound=nn.Module)


def _plain(module: object, kind: Callable[..., Kind]) -> Kind:
    if type(module) is not kind:
        raise NotOfThisForm(f"{type(module).__name__} is no plain {kind.__name__}")
    return cast(Kind, module)


def _alike(values: Iterable[T], what: str) -> T:
    one, *others = dict.fromkeys(values)
    if others:
        raise NotOfThisForm(f"its {what} differ")
    return one
