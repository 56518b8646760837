"""The flags that become a ``GenerationRequest``."""

from dataclasses import dataclass
from typing import Annotated

import typer

from orchestrator.decode.request import MAX_STOP_STRINGS, GenerationRequest
from orchestrator.policy.gates import AUTO_GAMMA, DEFAULT_GATE, DEFAULT_THRESHOLD, FIXED_GAMMA, Gate
from orchestrator.terminal.model_options import ModelOptions
from specgate.types import MAX_GAMMA, SamplingParams, SessionSpec, Verification

BUNDLED_GAMMA = 3
DEFAULT_MAX_TOKENS = 128
_DRAFTING = "Drafting"
_SAMPLING = "Sampling"
_LENGTH = "Length"


@dataclass(frozen=True, slots=True)
class DraftingOptions:
    """How many tokens are drafted, when, and how they are verified."""

    gamma: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help=f"Draft tokens per round, 0 to {MAX_GAMMA}; 0 is the target alone. The gate auto picks at most N.",
            show_default=f"{AUTO_GAMMA} for auto; {FIXED_GAMMA} for the others, {BUNDLED_GAMMA} with the bundled pair",
            rich_help_panel=_DRAFTING,
        ),
    ] = None
    gate: Annotated[
        Gate | None,
        typer.Option(help="When tokens are drafted.", show_default=DEFAULT_GATE.value, rich_help_panel=_DRAFTING),
    ] = None
    gate_threshold: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            help="The gate closes below this confidence, 0 to 1.",
            show_default=f"{DEFAULT_THRESHOLD[Gate.TARGET_CONFIDENCE]} for target_confidence, "
            f"{DEFAULT_THRESHOLD[Gate.DRAFT_CONFIDENCE]} for draft_confidence; the others have none",
            rich_help_panel=_DRAFTING,
        ),
    ] = None
    verification: Annotated[
        Verification,
        typer.Option(
            help="How draft tokens are accepted. Both keep the target's distribution.", rich_help_panel=_DRAFTING
        ),
    ] = Verification.SHARED_NOISE


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How the target's logits become tokens, and when to stop."""

    temperature: Annotated[
        float, typer.Option(help="0 is greedy: the most likely token.", rich_help_panel=_SAMPLING)
    ] = 0.0
    top_k: Annotated[
        int, typer.Option(help="Keep the k most likely tokens; 0 keeps all.", rich_help_panel=_SAMPLING)
    ] = 0
    top_p: Annotated[
        float, typer.Option(help="Keep the most likely tokens up to this total probability.", rich_help_panel=_SAMPLING)
    ] = 1.0
    min_p: Annotated[
        float, typer.Option(help="Drop tokens below this share of the top probability.", rich_help_panel=_SAMPLING)
    ] = 0.0
    repetition_penalty: Annotated[float, typer.Option(help="1 is off.", rich_help_panel=_SAMPLING)] = 1.0
    presence_penalty: Annotated[float, typer.Option(help="-2 to 2, 0 is off.", rich_help_panel=_SAMPLING)] = 0.0
    frequency_penalty: Annotated[float, typer.Option(help="-2 to 2, 0 is off.", rich_help_panel=_SAMPLING)] = 0.0
    seed: Annotated[
        int | None,
        typer.Option(
            help="The same seed gives the same text; not in rejection.",
            show_default="random",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    max_tokens: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of new tokens.", show_default=str(DEFAULT_MAX_TOKENS), rich_help_panel=_LENGTH
        ),
    ] = None
    stop: Annotated[
        tuple[str, ...],
        typer.Option(
            metavar="TEXT",
            help=f"Stop before this text. Repeatable, up to {MAX_STOP_STRINGS}.",
            rich_help_panel=_LENGTH,
        ),
    ] = ()
    stop_token_id: Annotated[
        tuple[int, ...], typer.Option(metavar="ID", help="Stop at this token. Repeatable.", rich_help_panel=_LENGTH)
    ] = ()
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Continue past the end-of-sequence token.", rich_help_panel=_LENGTH)
    ] = False


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
        sampling=_sampling_params(sampling),
        max_tokens=max_tokens if sampling.max_tokens is None else sampling.max_tokens,
        seed=sampling.seed,
        stop=sampling.stop,
        stop_token_ids=frozenset(sampling.stop_token_id),
        ignore_eos=sampling.ignore_eos,
        gamma=drafting.gamma if gate is Gate.AUTO else fixed_gamma(models, drafting.gamma),
        gate=gate,
        gate_threshold=drafting.gate_threshold,
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


def _sampling_params(options: SamplingOptions) -> SamplingParams:
    return SamplingParams(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
    )
