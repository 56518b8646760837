"""A draft in the making: the tokens that it has so far, and what limits it."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from specgate.runtime.kv_pages import KVSequence
from specgate.types import DraftMethod, DraftRequest, Proposal, SparseDistribution


class DraftToken(NamedTuple):
    """One drafted token. In rejection mode ``distribution`` is what it was sampled from.

    ``prob``: its raw probability (temperature 1, no filters), if the draft may stop at an unsure token; else 1.
    """

    token_id: int
    prob: float = 1.0
    distribution: SparseDistribution | None = None


class DraftLimits(NamedTuple):
    """What a draft depends on beside the tokens before it. ``round`` keys the randomness of rejection mode."""

    round: int
    gamma: int
    stop_below: float

    @classmethod
    def of(cls, request: DraftRequest) -> "DraftLimits":
        return cls(request.round, request.gamma, request.stop_below)


@dataclass(slots=True)
class Draft:
    """Tokens drafted one after the other; they are the last ones of ``sequence``.

    ``logits`` [1, vocabulary] are what each was chosen from. ``ended``: no token may follow the last one.
    """

    sequence: KVSequence
    limits: DraftLimits
    tokens: list[DraftToken] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    ended: bool = False

    @property
    def token_ids(self) -> list[int]:
        return [token.token_id for token in self.tokens]

    @property
    def confidences(self) -> tuple[float, ...]:
        """The raw probability of each token; none if the draft does not stop at an unsure one."""
        return tuple(token.prob for token in self.tokens) if self.limits.stop_below > 0 else ()

    @property
    def start(self) -> int:
        """Position of the first drafted token."""
        return len(self.sequence) - len(self.tokens)

    def add(self, tokens: Sequence[DraftToken], logits: torch.Tensor) -> None:
        """Append tokens. Their logits, a row each, are copied: a view would keep those of the whole step alive."""
        self.tokens += tokens
        self.logits += logits.clone().split(1)

    def ends_with(self, token_ids: Set[int]) -> bool:
        """Return whether the last drafted token is one of these."""
        return bool(self.tokens) and self.tokens[-1].token_id in token_ids

    def cut(self, num_tokens: int) -> None:
        """Drop all but the first ``num_tokens`` tokens."""
        if (surplus := len(self.tokens) - num_tokens) > 0:
            self.sequence.truncate(len(self.sequence) - surplus)
            del self.tokens[num_tokens:], self.logits[num_tokens:]
            self.ended = False

    def proposal(self, num_prepared: int, method: DraftMethod) -> Proposal:
        """Return the proposal. Its first ``num_prepared`` tokens were drafted before the round began."""
        return Proposal(
            tuple(self.token_ids),
            tuple(token.distribution for token in self.tokens if token.distribution is not None),
            from_run_ahead=0 < num_prepared == len(self.tokens),
            num_prepared=num_prepared,
            method=method,
            draft_confidences=self.confidences,
        )
