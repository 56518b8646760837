"""Token ids that may not be chosen yet: stop tokens before ``min_tokens``, by position, in draft and target alike."""

from typing import NamedTuple

import torch

from specgate.runtime import noise
from specgate.types import SessionSpec


class Barred(NamedTuple):
    """``token_ids`` may not be chosen before position ``until``."""

    token_ids: tuple[int, ...]
    until: int

    @classmethod
    def at(cls, position: int, spec: SessionSpec, vocab_size: int) -> "Barred | None":
        """Return what a session bars from ``position`` on; None: nothing."""
        until = len(spec.prompt_token_ids) + spec.min_tokens
        if position >= until or not spec.stop_token_ids:
            return None
        return cls(tuple(token_id for token_id in spec.stop_token_ids if token_id < vocab_size), until)

    def without(self, logits: torch.Tensor, position: int) -> torch.Tensor:
        """Return logits [rows, vocabulary] of ``position`` and those behind it with -inf where an id is barred."""
        early, later = logits.tensor_split([max(0, self.until - position)])
        ids = noise.on_device(self.token_ids, torch.int64, logits.device)
        return torch.cat([early.index_fill(1, ids, -torch.inf), later])
