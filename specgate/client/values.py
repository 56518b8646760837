"""What a generation is asked with, and what comes of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from specgate.types import FinishReason, Gate, Grammar, SamplingParams, TokenLogprobs, TokenSource, Verification


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn. ``role`` is system, developer, user or assistant."""

    role: str
    content: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation. ``continue_final_message`` goes on with its last message in the place of answering it."""

    messages: Sequence[ChatMessage]
    continue_final_message: bool = False


Prompt = str | Sequence[int] | Sequence[ChatMessage] | Chat
"""A text, token ids, or a conversation."""


@dataclass(frozen=True, slots=True)
class Params(SamplingParams):
    """What a request may set: ``SamplingParams``, and what follows. None leaves it to the server.

    ``gamma`` 0 is the target alone. ``logprobs`` and ``prompt_logprobs`` are how many of the likeliest tokens are told
    beside each token's own log-probability. ``n`` answers are told apart by their ``index``. ``grammar`` is what an
    answer may be. protos/specgate/v1/generation_service.proto tells the range of each.

    Raises:
        InvalidArgument: a sampling parameter is outside its range. The server checks the others.
    """

    max_tokens: int | None = None
    seed: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    gamma: int | None = None
    gate: Gate | None = None
    gate_threshold: float | None = None
    verification: Verification | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int | None = None
    grammar: Grammar | None = None
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class Stats:
    """Counted by the server over one answer. ``accepted_by`` names who drafted the accepted tokens."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    seed: int = 0
    rounds: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    solo_tokens: int = 0
    target_forwards: int = 0
    near_ties: int = 0
    drafter_failures: int = 0
    verifier_failovers: int = 0
    followed: int = 0
    accepted_by: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def acceptance_rate(self) -> float:
        """Of the tokens that were drafted, up to each first rejection; 0 where none was."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Delta:
    """Tokens that one verdict committed; ``sources`` has one entry a token.

    ``text`` is what became readable, whole characters only. The last delta of an answer has ``finish_reason`` and
    ``stats``, its first one ``prompt_logprobs``.
    """

    text: str
    token_ids: tuple[int, ...]
    sources: tuple[TokenSource, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stats: Stats | None = None
    index: int = 0


@dataclass(frozen=True, slots=True)
class Answer(Delta):
    """A whole answer. ``others`` are the ones after the first, where ``n`` asked for several."""

    others: tuple["Answer", ...] = ()
