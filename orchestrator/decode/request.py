"""What a caller asks for and what it gets: one request, its deltas, its statistics."""

from collections import Counter
from dataclasses import dataclass, field

from orchestrator.policy.gates import AUTO_GAMMA, DEFAULT_GATE, DEFAULT_THRESHOLD, FIXED_GAMMA, Gate, check_threshold
from specgate.errors import InvalidArgument
from specgate.types import (
    MAX_GAMMA,
    DraftMethod,
    FinishReason,
    Grammar,
    RoundRecord,
    SamplingParams,
    TokenLogprobs,
    TokenSource,
    Verification,
    check_range,
)

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256
MAX_CACHE_SALT = 256


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt and what to do with it.

    ``seed`` None draws one, which the statistics tell. ``gamma`` 0 is the target alone; under ``auto`` it is the most
    that may be chosen. ``gamma`` and ``gate_threshold`` None are the gate's own: 8 for ``auto`` (16 where the drafter
    copies) and 5 for the others; 0.5 for target_confidence and 0.4 for draft_confidence (``none`` and ``auto`` have no
    threshold). Requests share what is cached of equal beginnings with those of the same ``cache_salt`` alone.
    ``grammar``: what the answer may be; None: anything.

    Nothing ends the text before ``min_tokens``. ``include_stop``: the text has the stop string that ends it.
    ``shown_token_ids`` are special tokens that the text has though it skips the others.

    Raises:
        InvalidArgument: a value is outside its range; the message names the field.
    """

    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int = 128
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    gamma: int | None = None
    gate: Gate = DEFAULT_GATE
    gate_threshold: float | None = None
    verification: Verification = Verification.SHARED_NOISE
    logprobs: int | None = None
    cache_salt: str = ""
    min_tokens: int = 0
    include_stop: bool = False
    skip_special_tokens: bool = True
    shown_token_ids: frozenset[int] = frozenset()
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        check_range("gamma", self.max_gamma, 0, MAX_GAMMA)
        check_range("gate_threshold", self.threshold, 0.0, 1.0)
        check_threshold(self.gate, self.gate_threshold)
        check_range("min_tokens", self.min_tokens, 0, max(0, self.max_tokens))
        check_range("cache_salt (characters)", len(self.cache_salt), 0, MAX_CACHE_SALT)
        check_range("stop (strings)", len(self.stop), 0, MAX_STOP_STRINGS)
        for text in self.stop:
            if not text:
                raise InvalidArgument("stop", "an empty stop string matches everywhere")
            check_range("stop (characters)", len(text), 1, MAX_STOP_CHARACTERS)

    @property
    def max_gamma(self) -> int:
        """Draft tokens a round, at the most; 0 is the target alone."""
        if self.gamma is None:
            return AUTO_GAMMA if self.gate is Gate.AUTO else FIXED_GAMMA
        return self.gamma

    @property
    def rejects(self) -> bool:
        """See ``SessionSpec.rejects``: no two runs need to be of one text."""
        return self.verification is Verification.REJECTION and not self.sampling.greedy

    @property
    def threshold(self) -> float:
        return DEFAULT_THRESHOLD[self.gate] if self.gate_threshold is None else self.gate_threshold


@dataclass(slots=True)
class GenerationStats:
    """Counted from a request's records while it runs. Microseconds are lists, one entry a round, so that medians can be
    taken; so is ``prepared``: whether the proposal was there before the drafter was asked.

    ``drafted`` looks at each proposal up to and including its first rejection, nothing after: what follows was
    never judged. ``accepted_by`` says who drafted the accepted ones. ``outcomes`` counts rounds by (tokens proposed,
    tokens accepted), ``batch_widths`` verdicts by how many sessions shared their forward, as far as the verifier tells.
    ``draft_lengths`` are the tokens proposed in each round, ``solo_us`` what the verifier took for each verdict without
    a proposal, ``forwards_us`` the rows that the target was given for each verdict of either kind, and what that
    forward took. ``followed`` counts the rounds that the target went on with by itself.
    """

    seed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    solo_tokens: int = 0
    target_forwards: int = 0
    near_ties: int = 0
    drafter_failures: int = 0
    verifier_failovers: int = 0
    followed: int = 0
    accepted_by: Counter[DraftMethod] = field(default_factory=Counter)
    outcomes: Counter[tuple[int, int]] = field(default_factory=Counter)
    batch_widths: Counter[int] = field(default_factory=Counter)
    prepared: list[bool] = field(default_factory=list)
    draft_us: list[int] = field(default_factory=list)
    verify_us: list[int] = field(default_factory=list)
    round_us: list[int] = field(default_factory=list)
    draft_lengths: list[int] = field(default_factory=list)
    solo_us: list[int] = field(default_factory=list)
    forwards_us: list[tuple[int, int]] = field(default_factory=list)

    def add(self, record: RoundRecord) -> None:
        """Count a committed verdict."""
        verdict, proposal = record.verdict, record.proposal
        self.completion_tokens += record.num_tokens
        self.target_forwards += 1
        self.near_ties += verdict.near_ties
        self.followed += verdict.follow_up > 0
        if verdict.batch_sessions:
            self.batch_widths[verdict.batch_sessions] += 1
        if verdict.num_emitted:
            self.forwards_us.append((len(proposal) + 1, verdict.forward_us or verdict.verify_us))
        if record.undrafted:
            self.solo_tokens += record.num_tokens
            self.solo_us.append(verdict.verify_us)
        else:
            self._add_round(record)

    def _add_round(self, record: RoundRecord) -> None:
        proposal = record.proposal
        self.rounds += 1
        self.accepted += record.num_accepted
        self.accepted_by += Counter({proposal.method: record.num_accepted})
        self.drafted += record.num_judged
        self.outcomes[len(proposal), record.num_accepted] += 1
        self.prepared.append(proposal.from_run_ahead)
        self.draft_lengths.append(len(proposal))
        self.draft_us.append(proposal.draft_us)
        self.verify_us.append(record.verdict.verify_us)
        self.round_us.append(record.timing.round_us)

    @property
    def failures_survived(self) -> int:
        """Services that were lost, and that this request did without or replaced."""
        return self.drafter_failures + self.verifier_failovers

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def run_ahead_hit_rate(self) -> float:
        """Of all rounds with a proposal; the first one of a request cannot be prepared."""
        return sum(self.prepared) / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_forward(self) -> float:
        return self.completion_tokens / self.target_forwards if self.target_forwards else 0.0

    @property
    def solo_share(self) -> float:
        return self.solo_tokens / self.completion_tokens if self.completion_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Delta:
    """Tokens that one verdict committed, after trimming at the end of the request.

    ``text`` is what became readable; a multi-byte character waits for its last token, and text that may be the
    start of a stop string waits until it is not. ``sources`` has one entry a token.

    ``prompt_logprobs``, where they were asked for, are in the first delta: one entry for each token of the prompt but
    the first, which has nothing before it. ``records`` are the verdicts that the tokens come from, in their order.
    """

    token_ids: tuple[int, ...]
    sources: tuple[TokenSource, ...]
    text: str = ""
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    records: tuple[RoundRecord, ...] = ()
