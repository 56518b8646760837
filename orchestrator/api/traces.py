"""The attributes of a request's span, with GenAI's names, and a child span for each round."""

from collections.abc import Callable, Sequence
from typing import Any

from orchestrator.decode.request import GenerationRequest, GenerationStats
from specgate import tracing
from specgate.types import RoundRecord


def describe(model_name: str, requests: Sequence[GenerationRequest]) -> None:
    """Add what is requested to the running span, if there is one. The prompt is not added."""
    span = tracing.current()
    if span is None:
        return
    first = requests[0]
    span.set_attributes(
        {
            "gen_ai.provider.name": "specgate",
            "gen_ai.request.model": model_name,
            "gen_ai.request.max_tokens": first.max_tokens,
            "gen_ai.request.temperature": first.sampling.temperature,
            "gen_ai.request.choice.count": len(requests),
            "gen_ai.usage.input_tokens": sum(len(one.prompt_token_ids) for one in requests),
            "specgate.gamma": first.max_gamma,
            "specgate.gate": str(first.gate),
        }
    )


def conclude(stats: Sequence[GenerationStats]) -> None:
    """Add the results to the running span, if there is one."""
    span = tracing.current()
    if span is not None:
        drafted = sum(one.drafted for one in stats)
        accepted = sum(one.accepted for one in stats)
        span.set_attributes(
            {
                "gen_ai.usage.output_tokens": sum(one.completion_tokens for one in stats),
                "specgate.rounds": sum(one.rounds for one in stats),
                "specgate.acceptance_rate": accepted / drafted if drafted else 0.0,
                "specgate.drafter_failures": sum(one.drafter_failures for one in stats),
                "specgate.verifier_failovers": sum(one.verifier_failovers for one in stats),
            }
        )


def round_spans() -> Sequence[Callable[[RoundRecord], None]]:
    """Return the subscribers that make a span of each round: none if the request is not traced."""
    parent = tracing.current()
    return () if parent is None else (lambda record: _add_round(parent, record),)


def _add_round(parent: Any, record: RoundRecord) -> None:
    verdict = record.verdict
    attributes = {
        "specgate.draft_tokens": len(record.proposal),
        "specgate.accepted_tokens": record.num_accepted,
        "specgate.draft_us": record.proposal.draft_us,
        "specgate.verify_us": verdict.verify_us,
        "specgate.confidence": verdict.confidence,
        "specgate.solo": record.undrafted,
    }
    tracing.add_child(parent, "round", record.timing.round_us or verdict.verify_us, attributes)
