"""The requests and answers of the client."""

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
    """A conversation. ``continue_final_message`` continues its last message instead of answering it."""

    messages: Sequence[ChatMessage]
    continue_final_message: bool = False


Prompt = str | Sequence[int] | Sequence[ChatMessage] | Chat
"""A text, token ids, or a conversation."""


@dataclass(frozen=True, slots=True)
class Params(SamplingParams):
    """The parameters of a request: ``SamplingParams`` and the fields below. None takes the server's default.

    ``gamma`` 0 is the target alone. ``logprobs`` and ``prompt_logprobs`` are the number of most likely tokens reported
    beside each token. ``n`` is the number of answers, told apart by ``index``. ``grammar`` constrains the answer.
    protos/specgate/v1/generation_service.proto has the range of each field.

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
    draft_threshold: float | None = None
    verification: Verification | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int | None = None
    grammar: Grammar | None = None
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class Stats:
    """The server's counts of one answer. ``accepted_by`` counts accepted tokens by draft source."""

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
    cached_tokens: int = 0
    accepted_by: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def acceptance_rate(self) -> float:
        """Accepted share of the judged draft tokens; 0 if none was drafted."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Delta:
    """Tokens that one verdict committed; ``sources`` has one entry for each token.

    ``text`` is the text that became complete, in whole characters. The last delta of an answer has ``finish_reason``
    and ``stats``, the first one ``prompt_logprobs``.
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
    """A whole answer. ``others`` are the answers after the first if ``n`` is above 1."""

    others: tuple["Answer", ...] = ()
