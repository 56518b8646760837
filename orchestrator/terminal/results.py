"""A finished generation, its speed, and its JSON object."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from orchestrator.decode.request import Delta, GenerationStats
from specgate.errors import InvalidArgument, SpecgateError
from specgate.types import FinishReason, TokenLogprobs, TokenSource


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one request. ``first_s`` and ``last_s`` are the times of its first and last delta."""

    text: str
    token_ids: tuple[int, ...]
    sources: tuple[TokenSource, ...]
    finish_reason: FinishReason | None
    stats: GenerationStats
    first_s: float = 0.0
    last_s: float = 0.0
    num_first: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def decode_tokens(self) -> int:
        """Tokens after the first delta, which the prefill made wait."""
        return len(self.token_ids) - self.num_first

    @property
    def tokens_per_s(self) -> float | None:
        """Decode rate; None if all tokens came at once."""
        seconds = self.last_s - self.first_s
        return self.decode_tokens / seconds if seconds > 0 and self.decode_tokens else None


@dataclass(slots=True)
class Collector:
    """Collects the deltas of one request."""

    deltas: list[Delta] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def add(self, delta: Delta, now_s: float) -> None:
        """Add the next delta, received at ``now_s``."""
        self.deltas.append(delta)
        self.times.append(now_s)

    def result(self, stats: GenerationStats) -> Result:
        """Return all of it. An interrupted request has no finish reason."""
        deltas = self.deltas
        return Result(
            text="".join(delta.text for delta in deltas),
            token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
            sources=tuple(source for delta in deltas for source in delta.sources),
            finish_reason=deltas[-1].finish_reason if deltas else None,
            stats=stats,
            first_s=self.times[0] if deltas else 0.0,
            last_s=self.times[-1] if deltas else 0.0,
            num_first=len(deltas[0].token_ids) if deltas else 0,
            logprobs=tuple(entry for delta in deltas for entry in delta.logprobs),
        )


def median_or_none(values: Sequence[float]) -> float | None:
    """Return the median, None of nothing."""
    return median(values) if values else None


def overhead_us(stats: GenerationStats) -> list[int]:
    """Return what each round took beside drafting and verifying."""
    parts = zip(stats.round_us, stats.draft_us, stats.verify_us, strict=True)
    return [whole - draft - verify for whole, draft, verify in parts]


def hit_draft_shares(stats: GenerationStats) -> list[float]:
    """Return, of each round whose proposal was prepared, the share that drafting still took."""
    parts = zip(stats.prepared, stats.draft_us, stats.round_us, strict=True)
    return [draft / max(1, whole) for prepared, draft, whole in parts if prepared]


def result_object(result: Result) -> dict[str, Any]:
    """Return the JSON object of a finished request."""
    extra = {"logprobs": [_logprobs_object(entry) for entry in result.logprobs]} if result.logprobs else {}
    return {
        "text": result.text,
        "token_ids": list(result.token_ids),
        "sources": [str(source) for source in result.sources],
        "finish_reason": result.finish_reason,
        "stats": stats_object(result),
        **extra,
    }


def stats_object(result: Result) -> dict[str, Any]:
    """Return the statistics; times are medians over rounds, in microseconds."""
    stats = result.stats
    return {
        "seed": stats.seed,
        "prompt_tokens": stats.prompt_tokens,
        "cached_tokens": stats.cached_tokens,
        "completion_tokens": stats.completion_tokens,
        "rounds": stats.rounds,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "accepted_by": {str(method): count for method, count in stats.accepted_by.items()},
        "acceptance_rate": stats.acceptance_rate,
        "target_forwards": stats.target_forwards,
        "tokens_per_forward": stats.tokens_per_forward,
        "tokens_per_s": result.tokens_per_s,
        "solo_tokens": stats.solo_tokens,
        "solo_share": stats.solo_share,
        # A running system does not tell it.
        "run_ahead_hit_rate": stats.run_ahead_hit_rate if stats.prepared or not stats.rounds else None,
        "followed": stats.followed,
        "near_ties": stats.near_ties,
        "drafter_failures": stats.drafter_failures,
        "verifier_failovers": stats.verifier_failovers,
        "draft_us": median_or_none(stats.draft_us),
        "verify_us": median_or_none(stats.verify_us),
        "overhead_us": median_or_none(overhead_us(stats)),
        "hit_draft_share": median_or_none(hit_draft_shares(stats)),
    }


def _logprobs_object(entry: TokenLogprobs) -> dict[str, Any]:
    top = [{"token_id": token_id, "logprob": logprob} for token_id, logprob in entry.top]
    return {"logprob": entry.logprob, "top": top}


def error_object(error: SpecgateError) -> dict[str, Any]:
    """Return the JSON object of a failed request."""
    field = {"field": error.field} if isinstance(error, InvalidArgument) else {}
    return {"error": {"reason": error.reason, "message": str(error), **field}}
