"""How one model is served: the settings that a service's flags, the YAML of ``serve`` and the commands' flags share.

Each is declared here, once, with its limits and what it means; all three are made from these fields.
"""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from specgate.errors import InvalidArgument
from specgate.service.flags import validated
from specgate.service.silence import DEFAULT_FIRST_MESSAGE_S, DEFAULT_SESSION_IDLE_S, SilenceLimits
from specgate.types import MAX_RUN_AHEAD, Attention, DraftMethod, Dtype

MAX_SESSIONS_LIMIT = 4096
DEFAULT_RUN_AHEAD = 4


class ModelSettings(BaseModel):
    """One model on one device. A description is what the flags' help says."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    model: str = Field("", description="Causal language model: a folder or hub id of HuggingFace's, or a GGUF file.")
    tokenizer: str | None = Field(
        None, description="Folder or hub id with the tokenizer of a GGUF file, in place of the file's own."
    )
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu, cuda or cuda:N.")
    dtype: Dtype = Field(
        Dtype.AUTO,
        description="Type of weights and forward passes; auto is bfloat16 on CUDA; on the CPU float32, with bfloat16 "
        "weights kept as stored.",
    )
    attention: Attention = Field(
        Attention.AUTO, description="varlen is one fused call, on CUDA only; sdpa runs everywhere."
    )
    cuda_graphs: bool = Field(True, description="Replay recorded forward passes on CUDA; needs varlen.")
    cpu_graphs: bool = Field(True, description="Replay recorded forward passes of few rows on the CPU.")
    threads: int | None = Field(1, ge=1, le=1024, description="Torch threads on the CPU.")
    max_sessions: int = Field(16, ge=1, le=MAX_SESSIONS_LIMIT, description="Sessions that one service holds at a time.")
    kv_tokens: int | None = Field(
        None,
        ge=16,
        le=1 << 40,
        description="Tokens in all KV pages; a service on its own takes what memory allows.",
    )
    memory_share: float = Field(
        1.0,
        ge=0.01,
        le=1,
        description="Share of a card's memory for this service, weights included; at most 1 in all on one card.",
    )
    max_batch_tokens: int = Field(2048, ge=64, le=1 << 20, description="Tokens of all sessions in one forward pass.")
    prefill_chunk: int | None = Field(
        None,
        ge=1,
        le=1 << 20,
        description="Prompt tokens in one pass while other sessions decode; 64 on the CPU, 512 on CUDA if absent.",
    )
    first_message_s: float = Field(
        DEFAULT_FIRST_MESSAGE_S, ge=0.01, le=86_400, description="Seconds that a new stream has for its first message."
    )
    session_idle_s: float = Field(
        DEFAULT_SESSION_IDLE_S,
        ge=0.01,
        le=86_400,
        description="Seconds of silence from its client after which a session ends.",
    )

    @property
    def has_model(self) -> bool:
        return True

    @property
    def silence(self) -> SilenceLimits:
        """How long a client may say nothing."""
        return SilenceLimits(self.first_message_s, self.session_idle_s)

    @model_validator(mode="after")
    def _check_model(self) -> Self:
        if self.has_model and not self.model:
            raise InvalidArgument("--model", "is missing; give a folder, a hub id or a GGUF file")
        return self


class DraftModelSettings(ModelSettings):
    """What a drafter drafts from."""

    method: DraftMethod = Field(
        DraftMethod.MODEL,
        description="model; layer-skip: the target without the blocks of --skip; suffix: copies what followed the "
        "longest match in the text so far.",
    )
    skip: str | None = Field(None, description="JSON file of the blocks that layer-skip leaves out: docs/concepts.md.")
    target_tokenizer: str | None = Field(
        None,
        description="The target: a folder, hub id or GGUF file. A draft with another tokenizer is translated to its "
        "tokens.",
    )
    same_tokenizer: bool = Field(False, description="Refuse a draft whose tokenizer is not the target's.")
    run_ahead: int = Field(
        DEFAULT_RUN_AHEAD,
        ge=0,
        le=MAX_RUN_AHEAD,
        description="Outcomes of the pending verdict to draft for at a time; 0 is off. Needs a model.",
    )

    @property
    def has_model(self) -> bool:
        return self.method.has_model

    @model_validator(mode="after")
    def _check_method(self) -> Self:
        if self.model and not self.method.has_model:
            raise InvalidArgument("--model", f"{self.model!r} is not for the method {self.method}, which has no model")
        if self.skip is None and self.method is DraftMethod.LAYER_SKIP:
            raise InvalidArgument("--skip", f"is needed for the method {self.method}")
        if self.skip is not None and self.method is not DraftMethod.LAYER_SKIP:
            raise InvalidArgument("--skip", f"{self.skip!r} is for the method layer-skip, not for {self.method}")
        return self


def settings_class(role: str) -> type[ModelSettings]:
    """Return the settings of "drafter" or "verifier"."""
    return DraftModelSettings if role == "drafter" else ModelSettings


def settings_of(role: str, **values: object) -> ModelSettings:
    """Return settings that were checked.

    Raises:
        InvalidArgument: a value is outside its range; the message names the flag.
    """
    return validated(settings_class(role), values)
