"""The nouns that both services and the orchestrator share. Frozen, validated where they are made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from specgate.errors import InvalidArgument

SEED_LIMIT = 1 << 64
MAX_GAMMA = 64
MAX_RUN_AHEAD = 256
"""Guesses that a drafter drafts side by side."""
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_STOP_TOKEN_IDS = 256
GREEDY_BELOW = 1e-5
"""Logits divided by a smaller temperature overflow; there is nothing left to sample anyway."""
ALWAYS_SOLO = 2.0
"""A ``solo_below`` that no confidence reaches: the target decodes alone to the round's limit."""


class Verification(StrEnum):
    """How draft tokens are accepted. Both leave the target's distribution as it is."""

    SHARED_NOISE = "shared_noise"
    REJECTION = "rejection"


class FinishReason(StrEnum):
    """Why a generation ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"


class TokenSource(StrEnum):
    """Who brought an emitted token."""

    ACCEPTED = "accepted"
    RECOVERED = "recovered"
    BONUS = "bonus"
    SOLO = "solo"


class Dtype(StrEnum):
    """The number format of weights and forward passes. ``AUTO`` is what the device is for, see ``dtype_on``."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


def dtype_on(dtype: str, device: str) -> str:
    """Return the number format that ``dtype`` means on a device, "cpu", "cuda" or "cuda:N": never "auto".

    Whatever the model's own files say: bfloat16 on CUDA, float32 on the CPU.

    Raises:
        InvalidArgument: there is no such format.
    """
    if dtype not in list(Dtype):
        raise InvalidArgument("dtype", f"{dtype!r} is not one of {', '.join(Dtype)}")
    if dtype != Dtype.AUTO:
        return dtype
    return Dtype.BFLOAT16 if device.startswith("cuda") else Dtype.FLOAT32


class Attention(StrEnum):
    """How attention is computed: ``VARLEN`` is one fused call for all sequences, ``SDPA`` one call a sequence."""

    AUTO = "auto"
    VARLEN = "varlen"
    SDPA = "sdpa"


def common_prefix_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many leading token ids are the same."""
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return length


def check_range(field_name: str, value: float, low: float, high: float) -> None:
    """Raise InvalidArgument unless ``low <= value <= high``. NaN is never inside."""
    if not low <= value <= high:
        raise InvalidArgument(field_name, f"{value} is outside [{low}, {high}]")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What turns logits into the distribution that is sampled.

    Applied in the order of ``transformers``' generate: logit_bias, repetition_penalty, frequency and presence
    penalty, temperature, top_k, top_p, min_p. ``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 are off.

    Raises:
        InvalidArgument: a value is outside its range; the message names the field.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        check_range("temperature", self.temperature, 0.0, 100.0)
        check_range("top_k", self.top_k, 0, 1 << 30)
        check_range("top_p", self.top_p, 0.0, 1.0)
        check_range("min_p", self.min_p, 0.0, 1.0)
        check_range("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        check_range("logit_bias (entries)", len(self.logit_bias), 0, MAX_LOGIT_BIAS)
        if self.top_p == 0.0:
            raise InvalidArgument("top_p", "0 keeps no token; the smallest value is above 0")
        for token_id, bias in self.logit_bias.items():
            check_range(f"logit_bias[{token_id}]", bias, -100.0, 100.0)

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def has_penalties(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """What a session is opened with, on either service.

    ``output_token_ids`` is empty on a first attempt; after a failover it holds what was already emitted, and
    counts for penalties, limits and positions just as if this service had emitted it.
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

    def __post_init__(self) -> None:
        if not self.prompt_token_ids:
            raise InvalidArgument("prompt_token_ids", "is empty; at least 1 token is needed")
        check_range("seed", self.seed, 0, SEED_LIMIT - 1)
        check_range("max_tokens", self.max_tokens, 1, 1 << 30)
        check_range("output_token_ids (length)", len(self.output_token_ids), 0, self.max_tokens)
        check_range("stop_token_ids (length)", len(self.stop_token_ids), 0, MAX_STOP_TOKEN_IDS)
        check_range("logprobs", self.logprobs or 0, 0, MAX_LOGPROBS)

    @property
    def rejects(self) -> bool:
        """Whether proposals are judged by rejection: not by agreement, which is also what greedy comes to."""
        return self.verification is Verification.REJECTION and not self.sampling.greedy

    @property
    def committed_token_ids(self) -> tuple[int, ...]:
        return self.prompt_token_ids + self.output_token_ids

    @property
    def max_length(self) -> int:
        """Prompt plus the most that may be emitted, in tokens."""
        return len(self.prompt_token_ids) + self.max_tokens


@dataclass(frozen=True, slots=True)
class SparseDistribution:
    """The support of one draft distribution and its float32 weights, exactly the ones that were sampled from.

    The distribution is ``probs / sum(probs)`` with the sum in float64, in this order, on both sides.
    """

    token_ids: tuple[int, ...]
    probs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One round as the drafter sees it.

    ``token_ids`` are all tokens committed since the last message, ``position`` the committed length before
    them. ``gamma`` 0 keeps the drafter's KV warm and has no answer. ``prepare`` is how long proposals may be that
    are prepared for the next round, 0 leaves it to the drafter. ``foreseen``: the client has heard that the round would
    be proposed as it is asked for, so that an announcement which stands behind it can be followed.
    """

    round: int
    position: int
    token_ids: tuple[int, ...]
    gamma: int
    stop_below: float = 0.0
    prepare: int = 0
    foreseen: bool = False


@dataclass(frozen=True, slots=True)
class Proposal:
    """Draft token ids for the positions after the committed tokens.

    ``draft_probs`` has one distribution a token in rejection mode above temperature 0, and is empty otherwise.
    ``num_prepared`` tokens, the first ones, were there when the drafter turned to the round; ``from_run_ahead``: all of
    them.
    """

    draft_token_ids: tuple[int, ...] = ()
    draft_probs: tuple[SparseDistribution, ...] = ()
    from_run_ahead: bool = False
    draft_us: int = 0
    num_prepared: int = 0

    def __len__(self) -> int:
        return len(self.draft_token_ids)


NO_PROPOSAL = Proposal()


class AnnouncedProposal(NamedTuple):
    """What would be proposed if ``num_accepted`` tokens of the last proposal and then ``token_id`` were committed."""

    num_accepted: int
    token_id: int
    draft_token_ids: tuple[int, ...]


class Announcement(NamedTuple):
    """Proposals that were drafted before they were asked for, the likeliest first.

    ``position`` is the committed length they stand on. ``number`` counts a session's announcements. One that is
    ``further`` ahead stands behind the first proposal of the one with the number before its own, and says nothing where
    something else is committed.
    """

    position: int
    proposals: tuple[AnnouncedProposal, ...]
    further: bool = False
    number: int = 0


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """One round as the verifier sees it, from the committed length ``position``.

    After its verdict the target goes on alone while its confidence is below ``solo_below``, for
    ``max_solo_tokens`` tokens at the most.
    """

    round: int
    position: int
    proposal: Proposal
    solo_below: float = 0.0
    max_solo_tokens: int = 0


class FollowUp(NamedTuple):
    """What is verified next if a verdict commits ``num_accepted`` draft tokens, then ``token_id``, and is sure enough.

    ``least_confidence`` of that verdict; with less the verifier waits to be asked.
    """

    num_accepted: int
    token_id: int
    draft_token_ids: tuple[int, ...]
    least_confidence: float = 0.0


class FollowUps(NamedTuple):
    """Rounds that may come next, said while the one before them is verified.

    ``round`` is theirs, ``position`` the committed length that their outcomes come after; the gate as in a
    ``VerifyRequest``.
    """

    round: int
    position: int
    proposals: tuple[FollowUp, ...]
    solo_below: float = 0.0
    max_solo_tokens: int = 0

    def number_behind(self, verdict: "Verdict", position: int) -> int:
        """Return the number, from 1, of the first one whose outcome is ``verdict``; 0: none is. How sure the verdict
        must be is not looked at.

        Args:
            position: the committed length before the verdict.
        """
        if (self.round, self.position) != (verdict.round + 1, position):
            return 0
        outcome = verdict.num_accepted, verdict.token_id
        return next((number for number, one in enumerate(self.proposals, 1) if one[:2] == outcome), 0)

    def following(self, verdict: "Verdict", position: int, length: int) -> tuple[int, VerifyRequest | None]:
        """Return the number of the one that follows ``verdict``, sure as it is, and its round; 0 and None: none does.

        Args:
            position, length: the committed lengths before and behind the verdict.
        """
        number = self.number_behind(verdict, position)
        if not number or verdict.confidence < (one := self.proposals[number - 1]).least_confidence:
            return 0, None
        gate = self.solo_below, self.max_solo_tokens
        return number, VerifyRequest(self.round, length, Proposal(one.draft_token_ids), *gate)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The raw log-probability of an emitted token, and of the likeliest ones, best first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one forward pass of the target decided.

    ``num_accepted`` draft tokens are committed, then ``token_id``, the target's own token: recovered after a
    rejection, bonus after full acceptance, solo in a solo run. There is none when the run ended inside the accepted
    tokens. ``confidence`` is the raw probability (temperature 1, no filters) of the last token emitted,
    ``accepted_confidences`` that of each accepted one; empty where the verifier does not tell. ``near_ties``
    counts the choices of this verdict whose two best scores lay within 1e-4. ``batch_sessions`` is how many sessions
    shared the forward, ``batch_rows`` how many rows they had in it (0 where prompts ran along), ``forward_us`` what it
    took; each 0 where the verifier does not tell. ``follow_up`` is the number, from 1, of the follow-up that the
    verifier has gone on with; 0 where it waits to be asked.
    """

    round: int
    num_accepted: int = 0
    token_id: int | None = None
    confidence: float = 0.0
    solo: bool = False
    last: bool = True
    finish_reason: FinishReason | None = None
    near_ties: int = 0
    verify_us: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    batch_sessions: int = 0
    batch_rows: int = 0
    forward_us: int = 0
    accepted_confidences: tuple[float, ...] = ()
    follow_up: int = 0

    @property
    def num_emitted(self) -> int:
        return self.num_accepted + (self.token_id is not None)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a service says of itself; ``boot_id`` changes with every start."""

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
