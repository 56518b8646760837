"""Attention over KV pages, plugged into unchanged HuggingFace models by ``AttentionInterface``.

A batch is one ragged row of tokens; each sequence's rows write their keys and values into its pages and attend to
what the pages hold up to themselves. How that is computed is a ``Kernel``'s matter: ``spans`` runs everywhere,
``varlen`` where torch has a fused kernel for all sequences at once. Keyword arguments that change the result and are
not computed here are refused, because a model with random or small weights can pass a numerical check without them.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, Self, cast

import torch
from transformers import AttentionInterface

from specgate.errors import UnsupportedArchitecture
from specgate.runtime.kv_pages import Copy
from specgate.runtime.scheduler import Rows

NAME = "specgate_paged"
# Passed through by some models, without influence on the result of attention itself.
_HARMLESS = frozenset({"position_ids", "cache_position", "use_cache", "output_attentions", "output_hidden_states",
                       "output_router_logits", "return_dict", "is_causal", "logits_to_keep"})  # fmt: skip


@dataclass(slots=True)
class KVPages:
    """Key and value pages of every layer, [num_pages, kv_heads, page_size, head_dim], made when first written.

    Pages of one shape lie in one tensor, a stack [tensors, num_pages, kv_heads, page_size, head_dim], from ``resized``
    on: rows are then copied in all layers by one kernel.
    """

    num_pages: int
    page_size: int
    layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    stacks: list[torch.Tensor] = field(default_factory=list)

    def layer(self, index: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a layer's pages, for rows like ``key`` and ``value``, [1, kv_heads, rows, head_dim]."""
        if index not in self.layers:
            both = self._empty(key), self._empty(value)
            self.layers[index] = both
            self.stacks += [pages[None] for pages in both]
        return self.layers[index]

    @property
    def bytes_a_token(self) -> int:
        """Bytes of all layers' keys and values of one token; 0 before the first forward."""
        return sum(stack.nbytes // (stack.shape[1] * self.page_size) for stack in self.stacks)

    def resized(self, num_pages: int) -> Self:
        """Return so many pages of the same layers, empty."""
        other = type(self)(num_pages, self.page_size)
        more = num_pages - self.num_pages
        alike: dict[Hashable, list[tuple[int, int]]] = {}
        for index, both in self.layers.items():
            for part, pages in enumerate(both):
                alike.setdefault((pages.shape, pages.dtype), []).append((index, part))
        placed: dict[tuple[int, int], torch.Tensor] = {}
        for places in alike.values():
            index, part = places[0]
            one = self.layers[index][part]
            stack = one.new_empty(len(places), one.shape[0] + more, *one.shape[1:])
            other.stacks.append(stack)
            placed.update(zip(places, stack, strict=True))
        other.layers = {index: (placed[index, 0], placed[index, 1]) for index in self.layers}
        return other

    def copy_rows(self, copies: Iterable[Copy]) -> None:
        """Copy keys and values between pages, in order, in all layers that have any."""
        for source, target, first, end in copies:
            for stack in self.stacks:
                stack[:, target, :, first:end] = stack[:, source, :, first:end]

    def clear(self, pages: Sequence[int]) -> None:
        """Fill pages with zeros."""
        for stack in self.stacks:
            stack[:, list(pages)] = 0

    def _empty(self, like: torch.Tensor) -> torch.Tensor:
        return like.new_empty(self.num_pages, like.shape[1], self.page_size, like.shape[3])


class LayerCall(NamedTuple):
    """What a layer asks of attention.

    Attributes:
        scale: of the scores; None: one over the root of head_dim.
        window: how many tokens a row sees, itself among them; 0 is all.
        softcap: draws scores into (-softcap, softcap); None: they stay.
    """

    layer: int
    scale: float | None = None
    window: int = 0
    softcap: float | None = None


class Batch(Protocol):
    """What the attention function needs to know of one forward pass.

    ``num_calls`` counts the layers that asked, ``num_windows`` those that asked for a sliding window.
    """

    num_calls: int
    num_windows: int

    def attend(self, call: LayerCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Write the layer's keys and values into the pages and attend.

        Args:
            query, key, value: [1, heads, total_rows, head_dim]; key and value may have fewer heads (GQA).

        Returns:
            [1, total_rows, heads, head_dim].

        Raises:
            UnsupportedArchitecture: this way of computing it cannot do what the layer asks.
        """
        ...


class Inputs(NamedTuple):
    """One forward's inputs on the device, int64 [rows]; ``keep`` are the rows whose logits are wanted, None is all."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    keep: torch.Tensor | None
    ragged: Batch

    def replace_kept(self, token_ids: torch.Tensor) -> None:
        """Let the rows whose logits are wanted hold these tokens, in place."""
        if self.keep is None:
            self.token_ids.copy_(token_ids)
        else:
            self.token_ids.index_copy_(0, self.keep, token_ids)


Forward = Callable[[Inputs], torch.Tensor]
"""Of one ragged batch: the logits of the rows to keep, [rows, vocabulary], in the model's dtype."""


class Kernel(Protocol):
    """One way to compute attention over pages: how the pages lie, and what a batch must bring.

    ``why`` tells a person which variant it is, or why no faster one serves. ``batch_invariant``: a row's logits are
    the same to the bit whatever else is in its forward.
    """

    @property
    def name(self) -> str: ...

    @property
    def batch_invariant(self) -> bool: ...

    why: str

    def pages(self, num_pages: int, page_size: int) -> KVPages: ...

    def inputs(self, batch: Sequence[Rows], pages: KVPages, device: torch.device) -> Inputs: ...


def to_device(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return ``host`` on the device, without waiting for it where that is a GPU."""
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)


def wait_for(device: torch.device) -> None:
    """Return once the device has done all that it was given. Raises RuntimeError where it is lost."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _refuse_unknown(module: torch.nn.Module, arguments: dict[str, object]) -> None:
    if arguments.keys() <= _HARMLESS:
        return
    unknown = sorted(k for k, v in arguments.items() if k not in _HARMLESS and v is not None)
    if unknown:
        raise UnsupportedArchitecture(
            f"{type(module).__name__} passes {', '.join(unknown)} to attention, which is not computed here"
        )


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    ragged: Batch | None = None,
    **others: object,
) -> tuple[torch.Tensor, None]:
    """Attend as ``ragged`` does, which came through the model untouched.

    Args:
        query, key, value: [1, heads, total_rows, head_dim]; key and value may have fewer heads (GQA).

    Returns:
        [1, total_rows, heads, head_dim], and no weights.

    Raises:
        UnsupportedArchitecture: the model passes an argument that is not computed here, or lost the batch.
    """
    _refuse_unknown(module, others)
    if ragged is None or attention_mask is not None or dropout:
        raise UnsupportedArchitecture(f"{type(module).__name__} does not hand the ragged batch to attention")
    ragged.num_calls += 1
    ragged.num_windows += bool(sliding_window)
    call = LayerCall(cast(int, module.layer_idx), scaling, sliding_window or 0, softcap)
    return ragged.attend(call, query, key, value), None


def register() -> None:
    """Make the function known to transformers under ``NAME``. Safe to call twice.

    No mask function is registered with it: transformers then builds no mask, and looks for none in the positions.
    """
    AttentionInterface.register(NAME, paged_attention)
