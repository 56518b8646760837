"""Two rounds of measuring: every choice for a short time, then the best ones in turns with each other."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.local.launch import Capacity, Pair
from orchestrator.terminal.model_options import ModelOptions
from specgate.types import Verification
from specgate_lab.bench.row_names import TARGET
from specgate_lab.drafters import source_service, with_drafter
from specgate_lab.experiment import Sample, Samples
from specgate_lab.gate_choice import AUTO_GATE
from specgate_lab.progress import StageBars
from specgate_lab.tune.candidates import Choice, DrafterChoice, choices_of
from specgate_lab.tune.recording import spread
from specgate_lab.tune.versus_target import Gain, gain_of, measure_beside_target, texts_differ
from specgate_lab.variants import Decode, pair_variant

SHORT_PROMPTS, SHORT_TOKENS = 4, 48
"""Of the first round: enough to leave out what is plainly slower."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A choice, and its gain in the first round."""

    choice: Choice
    gain: Gain


@dataclass(frozen=True, slots=True)
class Comparison:
    """Measures choices beside the verifier of a running pair.

    ``skip`` is the skip file of layer-skip. ``texts_differ`` fills with the choices whose texts were not the target's.
    """

    pair: Pair
    models: ModelOptions
    skip: str | None
    capacity: Capacity
    log: Console
    texts_differ: set[str] = field(default_factory=set)

    async def first_round(
        self, drafters: Sequence[DrafterChoice], requests: Sequence[GenerationRequest], bars: StageBars
    ) -> list[Tried]:
        """Return the gain of each gate with each drafter, on a few short answers."""
        few = [replace(one, max_tokens=min(one.max_tokens, SHORT_TOKENS)) for one in spread(requests, SHORT_PROMPTS)]
        num_turns = sum(len(choices_of(drafter)) + 1 for drafter in drafters) * len(few)
        on_turn, tried = bars.counter("every way to draft", num_turns), list[Tried]()
        for drafter in drafters:
            choices = {str(choice): choice for choice in choices_of(drafter)}
            async with self._drafter(drafter) as orchestrator:
                variants = {name: pair_variant(orchestrator, choice.gate) for name, choice in choices.items()}
                samples = await measure_beside_target(variants, self.pair.orchestrator, few, 1, on_turn)
            self._check_texts(samples, few)
            tried += [Tried(choice, gain_of(name, samples)) for name, choice in choices.items()]
        return tried

    async def final_round(
        self,
        choices: Sequence[Choice],
        requests: Sequence[GenerationRequest],
        repeats: int,
        budget_s: float,
        on_turn: Callable[[], None],
    ) -> dict[str, list[Sample]]:
        """Return the samples of every choice and of ``TARGET``, all in turns.

        Above temperature 0 the first choice, and its drafter under ``auto``, are run in the other verification mode
        too, see ``name_in_other_mode``.
        """
        async with AsyncExitStack() as stack:
            drafters = {
                drafter: await stack.enter_async_context(self._drafter(drafter))
                for drafter in dict.fromkeys(choice.drafter for choice in choices)
            }
            own = {str(one): pair_variant(drafters[one.drafter], one.gate) for one in choices}
            others = {name_in_other_mode(one): _in_other_mode(own[str(one)]) for one in two_modes(choices, requests)}
            variants, target = {**own, **others}, self.pair.orchestrator
            samples = await measure_beside_target(variants, target, requests, repeats, on_turn, budget_s)
        self._check_texts({name: samples[name] for name in (TARGET, *own)}, requests)
        return samples

    @asynccontextmanager
    async def _drafter(self, drafter: DrafterChoice) -> AsyncIterator[Orchestrator]:
        service = source_service(self.pair, self.models, drafter.method, self.skip, self.capacity)
        service = service.with_settings(run_ahead=drafter.run_ahead)
        async with with_drafter(self.pair, service, self.log) as orchestrator:
            yield orchestrator

    def _check_texts(self, samples: Samples, requests: Sequence[GenerationRequest]) -> None:
        # Rejection promises a law, and no text.
        if not any(one.rejects for one in requests):
            self.texts_differ.update(texts_differ(samples))


def two_modes(choices: Sequence[Choice], requests: Sequence[GenerationRequest]) -> list[Choice]:
    """Return the choices that are measured in both modes: none where the modes are the same."""
    if all(one.sampling.greedy for one in requests):
        return []
    return [one for one in choices if one in (choices[0], Choice(choices[0].drafter, AUTO_GATE))]


def name_in_other_mode(choice: Choice) -> str:
    """Return the name under which a choice is measured in the other verification mode."""
    return f"{choice}, in the other mode"


def other_mode(verification: Verification) -> Verification:
    """Return the other one of the two exact modes."""
    return Verification.REJECTION if verification is Verification.SHARED_NOISE else Verification.SHARED_NOISE


def _in_other_mode(decode: Decode) -> Decode:
    async def decode_otherwise(request: GenerationRequest) -> Sample:
        return await decode(replace(request, verification=other_mode(request.verification)))

    return decode_otherwise
