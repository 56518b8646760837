"""The flags that become a ``GenerationRequest``."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from orchestrator.decode.request import MAX_STOP_STRINGS, GenerationRequest
from orchestrator.policy.gates import AUTO_GAMMA, DEFAULT_GATE, DEFAULT_THRESHOLD, FIXED_GAMMA, Gate
from orchestrator.terminal.model_options import ModelOptions
from specgate.types import MAX_GAMMA, SamplingParams, SessionSpec, Verification

BUNDLED_GAMMA = 3
DEFAULT_MAX_TOKENS = 128
_drafting = partial(typer.Option, rich_help_panel="Drafting")
_sampling = partial(typer.Option, rich_help_panel="Sampling")
_length = partial(typer.Option, rich_help_panel="Length")


@dataclass(frozen=True, slots=True)
class DraftingOptions:
    """How many tokens are drafted, when, and how they are verified."""

    gamma: Annotated[
        int | None,
        _drafting(
            metavar="N",
            help=f"Draft tokens per round, 0 to {MAX_GAMMA}; 0 is the target alone. The gate auto picks at most N.",
            show_default=f"{AUTO_GAMMA} for auto; {FIXED_GAMMA} for the others, {BUNDLED_GAMMA} with the bundled pair",
        ),
    ] = None
    gate: Annotated[Gate | None, _drafting(help="When tokens are drafted.", show_default=DEFAULT_GATE.value)] = None
    gate_threshold: Annotated[
        float | None,
        _drafting(
            metavar="P",
            help="The gate closes below this confidence, 0 to 1.",
            show_default=f"{DEFAULT_THRESHOLD[Gate.TARGET_CONFIDENCE]} for target_confidence, "
            f"{DEFAULT_THRESHOLD[Gate.DRAFT_CONFIDENCE]} for draft_confidence; the others have none",
        ),
    ] = None
    draft_threshold: Annotated[
        float | None,
        _drafting(
            metavar="P",
            help="With target_confidence: a draft ends after its first token of which the draft is less sure, 0 to 1.",
            show_default="off",
        ),
    ] = None
    verification: Annotated[
        Verification, _drafting(help="How draft tokens are accepted. Both keep the target's distribution.")
    ] = Verification.SHARED_NOISE


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How the target's logits become tokens, and when to stop."""

    temperature: Annotated[float, _sampling(help="0 is greedy: the most likely token.")] = 0.0
    top_k: Annotated[int, _sampling(help="Keep the k most likely tokens; 0 keeps all.")] = 0
    top_p: Annotated[float, _sampling(help="Keep the most likely tokens up to this total probability.")] = 1.0
    min_p: Annotated[float, _sampling(help="Drop tokens below this share of the top probability.")] = 0.0
    repetition_penalty: Annotated[float, _sampling(help="1 is off.")] = 1.0
    presence_penalty: Annotated[float, _sampling(help="-2 to 2, 0 is off.")] = 0.0
    frequency_penalty: Annotated[float, _sampling(help="-2 to 2, 0 is off.")] = 0.0
    seed: Annotated[
        int | None, _sampling(help="The same seed gives the same text; not in rejection.", show_default="random")
    ] = None
    max_tokens: Annotated[
        int | None, _length(help="Maximum number of new tokens.", show_default=str(DEFAULT_MAX_TOKENS))
    ] = None
    stop: Annotated[
        tuple[str, ...],
        _length(metavar="TEXT", help=f"Stop before this text. Repeatable, up to {MAX_STOP_STRINGS}."),
    ] = ()
    stop_token_id: Annotated[tuple[int, ...], _length(metavar="ID", help="Stop at this token. Repeatable.")] = ()
    ignore_eos: Annotated[bool, _length("--ignore-eos", help="Continue past the end-of-sequence token.")] = False


def request_for(
    models: ModelOptions,
    drafting: DraftingOptions,
    sampling: SamplingOptions,
    max_tokens: int = DEFAULT_MAX_TOKENS,
) -> GenerationRequest:
    """Return the request that the flags describe, its prompt still empty; ``max_tokens`` is a default.

    Raises:
        InvalidArgument: a value is outside its range; the message names the field.
    """
    gate = drafting.gate or DEFAULT_GATE
    request = GenerationRequest(
        prompt_token_ids=(),
        sampling=SamplingParams.from_fields_of(sampling),
        max_tokens=max_tokens if sampling.max_tokens is None else sampling.max_tokens,
        seed=sampling.seed,
        stop=sampling.stop,
        stop_token_ids=frozenset(sampling.stop_token_id),
        ignore_eos=sampling.ignore_eos,
        gamma=drafting.gamma if gate is Gate.AUTO else fixed_gamma(models, drafting.gamma),
        gate=gate,
        gate_threshold=drafting.gate_threshold,
        draft_threshold=drafting.draft_threshold,
        verification=drafting.verification,
    )
    check_limits(request)
    return request


def fixed_gamma(models: ModelOptions, given: int | None) -> int | None:
    """Return γ of a fixed gate; the bundled pair has its own default."""
    return BUNDLED_GAMMA if given is None and models.is_bundled_pair else given


def check_limits(request: GenerationRequest) -> None:
    """Raise InvalidArgument for a value that a session refuses, before services start."""
    SessionSpec(
        prompt_token_ids=request.prompt_token_ids or (0,),
        sampling=request.sampling,
        seed=request.seed or 0,
        verification=request.verification,
        max_tokens=request.max_tokens,
        stop_token_ids=request.stop_token_ids,
        logprobs=request.logprobs,
    )
