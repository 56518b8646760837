"""Counts and times of an answer: ``usage`` as OpenAI has it, ``metrics`` as vLLM does, and counts of ours."""

from collections.abc import Sequence
from dataclasses import fields
from functools import reduce
from operator import add
from typing import Any

from orchestrator.decode.request import Delta, GenerationRequest, GenerationStats
from specgate.types import RoundRecord


class Timing:
    """When one answer's request came, had its turn, and had its first and its last tokens committed. In seconds."""

    def __init__(self) -> None:
        self._came_s = self._turn_s = self._last_s = 0.0
        self._first_s: float | None = None

    def on_turn(self, came_s: float, turn_s: float) -> None:
        """Take over the times of the first choice whose turn has come."""
        if not self._turn_s:
            self._came_s, self._turn_s = came_s, turn_s

    def on_delta(self, delta: Delta) -> None:
        """Take over when the tokens were committed."""
        self._last_s = delta.committed_s
        self._first_s = self._last_s if self._first_s is None else self._first_s

    def summary(self, num_tokens: int) -> dict[str, float | None]:
        """Return vLLM's per-request times, in milliseconds, and tokens per second.

        ``tokens_per_second`` is taken from the request's turn to its last delta, so prefill is in it.
        """
        first_s = self._last_s if self._first_s is None else self._first_s
        decoding, whole = self._last_s - first_s, self._last_s - self._turn_s
        return {
            "time_to_first_token_ms": _ms(first_s - self._turn_s),
            "generation_time_ms": _ms(decoding),
            "queue_time_ms": _ms(self._turn_s - self._came_s),
            "mean_itl_ms": _ms(decoding / (num_tokens - 1)) if num_tokens > 1 else None,
            "tokens_per_second": round(num_tokens / whole, 3) if whole > 0 else None,
        }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """Return OpenAI's token counts."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def total(stats: Sequence[GenerationStats]) -> GenerationStats:
    """Return the statistics of several choices as one; the seed is that of the first."""
    names = [field.name for field in fields(GenerationStats)]
    summed = {name: reduce(add, [getattr(one, name) for one in stats]) for name in names}
    return GenerationStats(**summed | {"seed": stats[0].seed})


def metrics(request: GenerationRequest, stats: GenerationStats, timing: Timing) -> dict[str, Any]:
    """Return the ``metrics`` of one answer; ``specgate`` is our own part of it."""
    return {
        **timing.summary(stats.completion_tokens),
        "speculative_decoding": speculative_decoding(request, stats) if request.max_gamma else None,
        "specgate": {
            "seed": stats.seed,
            "verification": request.verification,
            "gamma": request.max_gamma,
            "gate": request.gate,
            "gate_threshold": request.threshold,
            "draft_threshold": request.draft_threshold,
            "rounds": stats.rounds,
            "drafted_tokens": stats.drafted,
            "accepted_tokens": stats.accepted,
            "accepted_by": {str(method): count for method, count in stats.accepted_by.items()},
            "solo_tokens": stats.solo_tokens,
            "target_forwards": stats.target_forwards,
            "near_ties": stats.near_ties,
            "drafter_failures": stats.drafter_failures,
            "verifier_failovers": stats.verifier_failovers,
            "followed": stats.followed,
        },
    }


def speculative_decoding(request: GenerationRequest, stats: GenerationStats) -> dict[str, Any]:
    """Return vLLM's acceptance metrics. Solo tokens are no step, and a bonus token is no accepted draft token."""
    steps = stats.outcomes.total()
    accepted = sum(number * count for (_, number), count in stats.outcomes.items())
    drafted = sum(length * count for (length, _), count in stats.outcomes.items())
    lengths = sorted({length for length, _ in stats.outcomes})
    # A copied proposal may be longer than the limit of a model.
    longest = max(request.max_gamma, *lengths, 0)
    histogram = [0] * (longest + 1)
    for (_, number), count in stats.outcomes.items():
        histogram[number] += count
    return {
        "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
        "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
        "acceptance_histogram": histogram,
        "acceptance_histogram_by_draft_length": {
            str(length): [stats.outcomes[length, number] for number in range(length + 1)] for length in lengths
        },
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_tokens": request.max_gamma,
    }


def round_entry(record: RoundRecord) -> dict[str, Any]:
    """Return the entry of one verdict. ``tokens`` is the number of committed tokens. Times are in microseconds."""
    verdict, proposal = record.verdict, record.proposal
    return {
        "round": verdict.round,
        "tokens": record.num_tokens,
        "gamma": record.plan.gamma,
        "draft_tokens": len(proposal),
        "accepted_tokens": record.num_accepted,
        "drafted_by": None if record.undrafted else proposal.method,
        "from_run_ahead": proposal.from_run_ahead,
        "why_alone": record.why_alone,
        "confidence": verdict.confidence,
        "draft_us": proposal.draft_us,
        "verify_us": verdict.verify_us,
        "round_us": record.timing.round_us,
    }
