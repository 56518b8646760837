"""How a token is chosen: sampling parameters, which verification, and when the draft is asked."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Self

from specgate.errors import InvalidArgument

SEED_LIMIT = 1 << 64
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
GREEDY_BELOW = 1e-5
"""Logits divided by a smaller temperature overflow; there is nothing left to sample anyway."""


class Verification(StrEnum):
    """How draft tokens are accepted. Both leave the target's distribution as it is."""

    SHARED_NOISE = "shared_noise"
    REJECTION = "rejection"


class Gate(StrEnum):
    """When the draft is asked."""

    NONE = "none"
    TARGET_CONFIDENCE = "target_confidence"
    DRAFT_CONFIDENCE = "draft_confidence"
    AUTO = "auto"


def check_range(field_name: str, value: float, low: float, high: float) -> None:
    """Raise InvalidArgument unless ``low <= value <= high``. NaN is never inside."""
    if not low <= value <= high:
        raise InvalidArgument(field_name, f"{value} is outside [{low}, {high}]")


def _within(low: float, high: float, *, default: float) -> Any:
    return field(default=default, metadata={"range": (low, high)})


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What turns logits into the distribution that is sampled.

    Applied in the order of ``transformers``' generate: logit_bias, repetition_penalty, frequency and presence
    penalty, temperature, top_k, top_p, min_p. ``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 are off.
    This is the one list of these fields: every other form is made from ``SAMPLING_FIELDS``, by name.

    Raises:
        InvalidArgument: a value is outside its range; the message names the field.
    """

    temperature: float = _within(0.0, 100.0, default=1.0)
    top_k: int = _within(0, 1 << 30, default=0)
    top_p: float = _within(0.0, 1.0, default=1.0)
    min_p: float = _within(0.0, 1.0, default=0.0)
    repetition_penalty: float = _within(0.01, 100.0, default=1.0)
    presence_penalty: float = _within(-2.0, 2.0, default=0.0)
    frequency_penalty: float = _within(-2.0, 2.0, default=0.0)
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            check_range(name, getattr(self, name), low, high)
        check_range("logit_bias (entries)", len(self.logit_bias), 0, MAX_LOGIT_BIAS)
        if self.top_p == 0.0:
            raise InvalidArgument("top_p", "0 keeps no token; the smallest value is above 0")
        for token_id, bias in self.logit_bias.items():
            check_range(f"logit_bias[{token_id}]", bias, -100.0, 100.0)

    @classmethod
    def from_fields_of(cls, form: object) -> Self:
        """Return the values that ``form`` has under the same names; absent and None ones take their defaults."""
        values = {name: getattr(form, name, None) for name in SAMPLING_FIELDS}
        return cls(**{name: value for name, value in values.items() if value is not None})

    def as_dict(self) -> dict[str, Any]:
        """Return the value of each of ``SAMPLING_FIELDS``."""
        return {name: getattr(self, name) for name in SAMPLING_FIELDS} | {"logit_bias": dict(self.logit_bias)}

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def quarters(self) -> int:
        """The temperature in quarters, from 1 to 8; 0 is greedy. Drafts are alike within one."""
        return 0 if self.greedy else min(max(round(4 * self.temperature), 1), 8)

    @property
    def is_unfiltered(self) -> bool:
        """Return whether every token may be sampled, or none is."""
        return self.greedy or (self.top_k, self.top_p, self.min_p) == (0, 1.0, 0.0)

    @property
    def has_penalties(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


SAMPLING_FIELDS = tuple(one.name for one in fields(SamplingParams))
_RANGES: Mapping[str, tuple[float, float]] = {
    one.name: one.metadata["range"] for one in fields(SamplingParams) if one.metadata
}
