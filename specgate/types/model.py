"""How a model is served, and what a service says of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from specgate.errors import InvalidArgument

PROTO_VERSION = "specgate.v1"
"""Version of the contract that both services speak."""


class Dtype(StrEnum):
    """The number format of weights and forward passes. ``AUTO`` is what the device is for, see ``dtype_on``."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


def dtype_on(dtype: str, device: str) -> str:
    """Return the number format that ``dtype`` means on a device, "cpu", "cuda" or "cuda:N": never "auto".

    Whatever the model's own files say: bfloat16 on CUDA, float32 on the CPU (where weights may stay as stored).

    Raises:
        InvalidArgument: there is no such format.
    """
    if dtype not in list(Dtype):
        raise InvalidArgument("dtype", f"{dtype!r} is not one of {', '.join(Dtype)}")
    if dtype != Dtype.AUTO:
        return dtype
    return Dtype.BFLOAT16 if device.startswith("cuda") else Dtype.FLOAT32


class DraftMethod(StrEnum):
    """Where drafts come from."""

    MODEL = "model"
    LAYER_SKIP = "layer-skip"
    SUFFIX = "suffix"

    @property
    def has_model(self) -> bool:
        """Whether a service of this method runs a model."""
        return self is not DraftMethod.SUFFIX


class Attention(StrEnum):
    """How attention is computed: ``VARLEN`` is one fused call for all sequences, ``SDPA`` one call a sequence."""

    AUTO = "auto"
    VARLEN = "varlen"
    SDPA = "sdpa"


class ForwardCost(NamedTuple):
    """Time of one forward of one session with ``rows`` rows, measured when the service loaded.

    ``forward_us`` with hardly any text before them; it takes ``context_us`` longer for each 1,024 tokens of it.
    """

    rows: int
    forward_us: int
    context_us: int = 0

    def at(self, length: float) -> "ForwardCost":
        """Return what it takes with so many tokens before the rows."""
        return ForwardCost(self.rows, self.forward_us + round(self.context_us * length / 1024))


class Capability(StrEnum):
    """What a service can do that one of release 0.1.0 cannot, by its name in the contract."""

    FIRST_POSITION = "first_position"
    RUNNING_DRAFTS = "running_drafts"


CAPABILITIES: Mapping[str, frozenset[str]] = {
    "drafter": frozenset({Capability.FIRST_POSITION, Capability.RUNNING_DRAFTS}),
    "verifier": frozenset({Capability.RUNNING_DRAFTS}),
}
"""Those of the services of this release, by role."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a service says of itself; ``boot_id`` changes with every start.

    ``forward_costs`` are in rising order of rows; empty if unknown. ``draft_method`` is a drafter's.
    ``batch_invariant``: a row's logits do not depend on the other rows of its forward, to the bit, so that near ties
    change no text of this service. ``capabilities`` may hold more than a ``Capability``, from a newer service.
    """

    model: str
    role: str
    architecture: str
    dtype: str
    device: str
    context_length: int
    vocab_size: int
    num_parameters: int
    tokenizer_fingerprint: Mapping[str, str]
    eos_token_ids: tuple[int, ...]
    max_sessions: int
    kv_tokens: int
    proto_version: str
    boot_id: str
    active_sessions: int = 0
    free_kv_tokens: int = 0
    forward_costs: tuple[ForwardCost, ...] = ()
    draft_method: DraftMethod = DraftMethod.MODEL
    uptime_s: int = 0
    batch_invariant: bool = False
    capabilities: frozenset[str] = frozenset()
