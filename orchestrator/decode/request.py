"""One request, its deltas and its statistics."""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Self

from orchestrator.policy.gates import AUTO_GAMMA, DEFAULT_GATE, DEFAULT_THRESHOLD, FIXED_GAMMA, Gate, check_thresholds
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
    """One prompt and its parameters.

    - ``seed``: None draws one; ``GenerationStats`` reports it.
    - ``gamma``: draft tokens per round; 0 is the target alone. Under ``auto`` it is the most that the gate picks. None
      is 8 for ``auto`` (16 if the drafter copies from the text) and 5 for the other gates.
    - ``gate_threshold``: None is 0.5 for target_confidence and 0.4 for draft_confidence; the others have none.
    - ``draft_threshold``: with target_confidence, a draft ends after its first token of which the draft is less sure.
    - ``cache_salt``: requests share cached prefixes only with requests of the same salt.
    - ``grammar``: constrains the answer; None allows any text.
    - ``min_tokens``: the text does not end before so many tokens.
    - ``include_stop``: the text includes the stop string that ends it.
    - ``shown_token_ids``: special tokens that the text shows although it skips the others.

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
    draft_threshold: float | None = None
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
        check_range("draft_threshold", self.draft_threshold or 0.0, 0.0, 1.0)
        check_thresholds(self.gate, self.gate_threshold, self.draft_threshold)
        check_range("min_tokens", self.min_tokens, 0, max(0, self.max_tokens))
        check_range("cache_salt (characters)", len(self.cache_salt), 0, MAX_CACHE_SALT)
        check_range("stop (strings)", len(self.stop), 0, MAX_STOP_STRINGS)
        for text in self.stop:
            if not text:
                raise InvalidArgument("stop", "an empty stop string matches everywhere")
            check_range("stop (characters)", len(text), 1, MAX_STOP_CHARACTERS)

    @property
    def max_gamma(self) -> int:
        """Most draft tokens per round; 0 is the target alone."""
        if self.gamma is None:
            return AUTO_GAMMA if self.gate is Gate.AUTO else FIXED_GAMMA
        return self.gamma

    @property
    def num_prompt_logprobs(self) -> int:
        """Log-probabilities of the prompt in the answer: each token's own, and those of the likeliest ones."""
        return 0 if self.prompt_logprobs is None else len(self.prompt_token_ids) * (1 + self.prompt_logprobs)

    @property
    def num_logprobs(self) -> int:
        """The most log-probabilities of emitted tokens in the answer."""
        return 0 if self.logprobs is None else self.max_tokens * (1 + self.logprobs)

    @property
    def rejects(self) -> bool:
        """See ``SessionSpec.rejects``: two runs may give different texts."""
        return self.verification is Verification.REJECTION and not self.sampling.greedy

    @property
    def threshold(self) -> float:
        return DEFAULT_THRESHOLD[self.gate] if self.gate_threshold is None else self.gate_threshold

    @property
    def stop_below(self) -> float:
        """See ``RoundPlan``."""
        return self.threshold if self.gate is Gate.DRAFT_CONFIDENCE else self.draft_threshold or 0.0


@dataclass(slots=True)
class GenerationStats:
    """The counts of a request, updated while it runs. Lists have one entry per round; times are microseconds.

    - ``drafted``: draft tokens up to and including the first rejection of each proposal; later ones are not judged.
    - ``accepted_by``: accepted tokens by draft source.
    - ``outcomes``: rounds by (tokens proposed, tokens accepted).
    - ``prepared``: whether the proposal was ready before it was requested.
    - ``followed``: rounds that the target began by itself, from an announcement.
    - ``cached_tokens``: of the prompt, those that its first verifier did not compute.
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
    cached_tokens: int = 0
    accepted_by: Counter[DraftMethod] = field(default_factory=Counter)
    outcomes: Counter[tuple[int, int]] = field(default_factory=Counter)
    prepared: list[bool] = field(default_factory=list)
    draft_us: list[int] = field(default_factory=list)
    verify_us: list[int] = field(default_factory=list)
    round_us: list[int] = field(default_factory=list)

    def add(self, record: RoundRecord) -> None:
        """Add a committed verdict."""
        verdict = record.verdict
        self.completion_tokens += record.num_tokens
        self.target_forwards += 1
        self.near_ties += verdict.near_ties
        self.followed += verdict.follow_up > 0
        if record.undrafted:
            self.solo_tokens += record.num_tokens
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
        self.draft_us.append(proposal.draft_us)
        self.verify_us.append(record.verdict.verify_us)
        self.round_us.append(record.timing.round_us)

    @property
    def failures_survived(self) -> int:
        """Lost services that this request replaced or went on without."""
        return self.drafter_failures + self.verifier_failovers

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def run_ahead_hit_rate(self) -> float:
        """Share of rounds whose proposal was prepared; the first round never is."""
        return sum(self.prepared) / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_forward(self) -> float:
        return self.completion_tokens / self.target_forwards if self.target_forwards else 0.0

    @property
    def solo_share(self) -> float:
        return self.solo_tokens / self.completion_tokens if self.completion_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Delta:
    """Tokens that one verdict committed, trimmed at the end of the request.

    ``text`` is the text that became complete. A multi-byte character waits for its last token, and the possible start
    of a stop string waits until it is decided. ``sources`` has one entry per token. ``prompt_logprobs``, if requested,
    are in the first delta: one entry for each prompt token but the first. So is ``cached_tokens``, of the prompt.
    ``records`` are the verdicts of the tokens. ``committed_s``, in seconds of ``time.perf_counter``, is when the tokens
    were committed. ``stats`` is in the last delta.
    """

    token_ids: tuple[int, ...]
    sources: tuple[TokenSource, ...]
    text: str = ""
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    records: tuple[RoundRecord, ...] = ()
    cached_tokens: int = 0
    committed_s: float = field(default=0.0, compare=False)
    stats: GenerationStats | None = field(default=None, compare=False)

    def without_records(self) -> Self:
        """Return the delta as an answer without rounds needs it. Kept records would be most of the objects that a
        garbage collection walks, which stops every thread.
        """
        return replace(self, records=())

    @property
    def size(self) -> int:
        """Number of tokens and log-probabilities; the time to encode them is in proportion."""
        return len(self.token_ids) + sum(1 + len(one.top) for one in (*self.logprobs, *self.prompt_logprobs))
