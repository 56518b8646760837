"""A short head: a draft that proposes frequent tokens alone (FR-Spec, Zhao et al., 2025).

Most of what a small draft reads for a token is its head over the whole vocabulary. ``short_head.json`` in its folder,
``{"token_ids": [0, 5, ...]}``, says which tokens the head is cut to. No text changes: the target verifies as before.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from specgate.errors import InvalidArgument, UnsupportedArchitecture
from specgate.runtime.stored_weights import Codes, keep, picked, stand_in, weight_of

FILE = "short_head.json"
NEVER = -1e4
"""The logit of a token that the head has not: its probability is 0 beside any other's. It is finite, so that a grammar
which allows such tokens alone gets one of them."""


class ShortHead(nn.Module):
    """In the place of a head of ``vocab_size`` rows: those of ``token_ids``, which ascend, and ``NEVER`` elsewhere.

    Args:
        rows: of ``head``, by default those of these numbers.
        vocab_size: by default that of ``head``.
    """

    token_ids: torch.Tensor

    def __init__(
        self,
        head: nn.Linear,
        token_ids: Sequence[int],
        rows: Sequence[int] | None = None,
        vocab_size: int | None = None,
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size or head.out_features
        chosen = torch.tensor(token_ids if rows is None else rows)
        self.rows = nn.Linear(head.in_features, len(chosen), bias=head.bias is not None, device="meta")
        own = picked(weight_of(head), chosen)
        if isinstance(own, Codes) or own.dtype is not head.weight.dtype:
            keep(self.rows, own, stand_in(own))
        else:
            self.rows.weight = nn.Parameter(own, requires_grad=False)
        if head.bias is not None:
            self.rows.bias = nn.Parameter(head.bias[chosen], requires_grad=False)
        self.register_buffer("token_ids", torch.tensor(token_ids), persistent=False)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return logits [..., vocabulary] of states [..., width]."""
        return self.widened(self.rows(hidden_states))

    def widened(self, logits: torch.Tensor) -> torch.Tensor:
        """Return logits [..., vocabulary] of those of the head's own tokens."""
        whole = logits.new_full((*logits.shape[:-1], self.vocab_size), NEVER)
        return whole.index_copy_(-1, self.token_ids, logits)


def read_short_head(name: str, vocab_size: int) -> list[int] | None:
    """Return the tokens that the head of the model in folder ``name`` is cut to, ascending; None: it stays whole.

    Raises:
        InvalidArgument: the file is not as it should be; says how.
    """
    path = Path(name) / FILE
    if not path.is_file():
        return None
    try:
        token_ids = json.loads(path.read_text("utf-8"))["token_ids"]
        found = sorted(set(token_ids))
    except (ValueError, LookupError, TypeError) as error:
        raise InvalidArgument(FILE, f"{path} has no list of token_ids: {error}") from None
    if not found or any(type(one) is not int for one in found) or not 0 <= found[0] <= found[-1] < vocab_size:
        raise InvalidArgument(FILE, f"{path}: token_ids are numbers from 0 to {vocab_size - 1}, at least one")
    return found


def cut_head(model: Any, token_ids: Sequence[int]) -> None:
    """Cut a model's head to these tokens.

    Raises:
        UnsupportedArchitecture: its head is no plain product.
    """
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        raise UnsupportedArchitecture(f"{type(model).__name__}: its head is no plain product, and cannot be cut")
    model.set_output_embeddings(ShortHead(head, token_ids))
