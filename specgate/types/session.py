"""What a session on a service is opened with; where tokens come from, and why a generation ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from specgate.errors import InvalidArgument
from specgate.types.grammar import Grammar
from specgate.types.sampling import MAX_LOGPROBS, SEED_LIMIT, SamplingParams, Verification, check_range

MAX_STOP_TOKEN_IDS = 256


class FinishReason(StrEnum):
    """Why a generation ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"


class TokenSource(StrEnum):
    """Where an emitted token comes from: ``ACCEPTED`` is a draft model."""

    ACCEPTED = "accepted"
    RECOVERED = "recovered"
    BONUS = "bonus"
    SOLO = "solo"
    ACCEPTED_LAYER_SKIP = "accepted_layer_skip"
    ACCEPTED_SUFFIX = "accepted_suffix"


def common_prefix_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many leading token ids are the same."""
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return length


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """What a session is opened with, on either service.

    ``output_token_ids`` is empty on a first attempt; after a failover it holds what was already emitted, and
    counts for penalties, limits and positions just as if this service had emitted it. ``min_tokens`` are emitted before
    one of ``stop_token_ids`` may be chosen. A verifier sends ``prompt_logprobs`` before its first verdict, unless there
    are ``output_token_ids``. ``grammar``: what the answer may be; None: anything. ``first_position`` is where in the
    text the prompt begins, above 0 on a drafter that is given the end of the text alone, see ``last``.
    """

    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    verification: Verification
    max_tokens: int
    output_token_ids: tuple[int, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    vocab_size: int = 0
    tokenizer_fingerprint: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    logprobs: int | None = None
    cache_salt: str = ""
    lease_token: str = ""
    min_tokens: int = 0
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None
    first_position: int = 0

    def __post_init__(self) -> None:
        if not self.prompt_token_ids:
            raise InvalidArgument("prompt_token_ids", "is empty; at least 1 token is needed")
        check_range("seed", self.seed, 0, SEED_LIMIT - 1)
        check_range("max_tokens", self.max_tokens, 1, 1 << 30)
        check_range("output_token_ids (length)", len(self.output_token_ids), 0, self.max_tokens)
        check_range("stop_token_ids (length)", len(self.stop_token_ids), 0, MAX_STOP_TOKEN_IDS)
        check_range("logprobs", self.logprobs or 0, 0, MAX_LOGPROBS)
        check_range("prompt_logprobs", self.prompt_logprobs or 0, 0, MAX_LOGPROBS)
        check_range("min_tokens", self.min_tokens, 0, self.max_tokens)
        check_range("first_position", self.first_position, 0, 1 << 30)
        if self.min_tokens and 0 < self.vocab_size <= len(self.stop_token_ids):
            raise InvalidArgument("min_tokens", "every token is a stop token; there is none to emit before them")
        if self.min_tokens and self.grammar is not None:
            raise InvalidArgument("min_tokens", "excludes a grammar, whose answer may be complete before")

    @property
    def rejects(self) -> bool:
        """Whether proposals are judged by rejection: not by agreement, which is also what greedy comes to."""
        return self.verification is Verification.REJECTION and not self.sampling.greedy

    @property
    def num_prompt_logprobs(self) -> int:
        """Tokens of the prompt whose log-probabilities a verifier sends: all but the first, which has none."""
        wanted = self.prompt_logprobs is not None and not self.output_token_ids
        return len(self.prompt_token_ids) - 1 if wanted else 0

    @property
    def committed_token_ids(self) -> tuple[int, ...]:
        return self.prompt_token_ids + self.output_token_ids

    @property
    def max_length(self) -> int:
        """The whole text with the most that may be emitted, in tokens."""
        return self.output_position + self.max_tokens

    @property
    def output_position(self) -> int:
        """Where in the text the first of ``output_token_ids`` is."""
        return self.first_position + len(self.prompt_token_ids)

    @property
    def position(self) -> int:
        """Where in the text the token after the committed ones is."""
        return self.output_position + len(self.output_token_ids)

    def last(self, num_tokens: int) -> "SessionSpec":
        """Return what opens a session with the last ``num_tokens`` committed tokens alone, at the same positions.

        Where output is left out, a grammar cannot be followed any more, and is left out, too.
        """
        cut = len(self.committed_token_ids) - num_tokens
        if cut <= 0:
            return self
        tail = self.committed_token_ids[cut:]
        num_prompt = max(1, len(self.prompt_token_ids) - cut)
        num_lost = len(self.output_token_ids) - (num_tokens - num_prompt)
        return replace(
            self,
            first_position=self.first_position + cut,
            prompt_token_ids=tail[:num_prompt],
            output_token_ids=tail[num_prompt:],
            max_tokens=self.max_tokens - num_lost,
            min_tokens=max(0, self.min_tokens - num_lost),
            grammar=None if num_lost else self.grammar,
        )
