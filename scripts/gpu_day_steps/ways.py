"""Lines of the origin experiment's table: what each way to decode a planted pair is worth."""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, NamedTuple

from gpu_day_steps.serving import figures_of, planted_prompts
from gpu_day_steps.sizes import MIDDLE, THIN, Sizes, draft_name, sizes
from gpu_day_steps.step import CheckFailed, Context, Range
from orchestrator.policy.gates import Gate
from specgate_lab.experiment import Sample
from specgate_lab.gate_choice import AUTO_GATE, GateChoice
from specgate_lab.proof.plan import greedy_request
from specgate_lab.variants import WARM_UP_TOKENS, Decode

TARGET, TARGET_HF, OURS = "target", "target-hf", "spec"
MARGIN_S = 8.0
"""Left for ending what was started."""
LEAST_WAYS = 3
"""The target alone, and two more."""
Told = dict[str, Any]


class Way(NamedTuple):
    """One line of the table: what it is, and how it decodes."""

    told: Told
    decode: Decode

    @property
    def name(self) -> str:
        """Return all that is told of it."""
        return ", ".join(f"{key} {value}" for key, value in self.told.items() if key != "way")


class Table:
    """The lines so far. All must have the text of the first, which is the target's alone."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._told: list[Told] = []
        self._text: list[tuple[int, ...]] = []
        self.parted: list[str] = []

    def add(self, way: Way, samples: Sequence[Sample]) -> None:
        """Tell a line, with its ratios to the target alone and to HuggingFace's loop."""
        text = [sample.token_ids for sample in samples]
        self._text = self._text or text
        if text != self._text:
            self.parted.append(way.name)
        told = {**way.told, **figures_of(samples), "same_text": text == self._text}
        self._told.append(told)
        told |= {f"x_{base}": self._ratio(told, base) for base in (TARGET, TARGET_HF)}
        self._context.row(**told)

    def best_of_each(self) -> dict[str, float]:
        """Return what each way's best γ with each draft is of the target alone. What ``auto`` picks may be no draft."""
        best: dict[str, float] = {}
        for told in self._told:
            if "draft" in told and told.get("gate") != Gate.AUTO:
                name = f"{told['way']} {told['draft']}"
                best[name] = max(best.get(name, 0.0), told[f"x_{TARGET}"])
        return best

    def _ratio(self, told: Told, base: str) -> float | None:
        rates = [one["tokens_per_s"] for one in self._told if one["way"] == base]
        return round(told["tokens_per_s"] / rates[0], 3) if rates and rates[0] else None


async def measure(context: Context, ways: AsyncGenerator[Way, None], expected: Mapping[str, Range]) -> str:
    """Measure ways in order, the target alone first, as long as there is time; tell what the best with each draft is.

    Args:
        expected: the best ratio with a draft to the target alone, by the draft's name.

    Raises:
        CheckFailed: one of them has another text than the target alone, or there was time for few.
    """
    of, lines, num_measured, longest_s = sizes(context), Table(context), 0, 0.0
    prompts = planted_prompts(of.timed_prompts, of.target["vocab_size"])
    requests = [replace(greedy_request(ids, of.tokens), logprobs=None) for ids in prompts]
    async with aclosing(ways):
        async for way in ways:
            left_s = context.left_s
            if left_s < MARGIN_S + longest_s:
                break
            # A short run goes before and is thrown away.
            await way.decode(replace(requests[0], max_tokens=min(WARM_UP_TOKENS, of.tokens)))
            lines.add(way, [await way.decode(request) for request in requests])
            num_measured, longest_s = num_measured + 1, max(longest_s, left_s - context.left_s)
    best = lines.best_of_each()
    for draft, ratios in expected.items():
        if f"{OURS} {draft}" in best and not context.where.dry:
            context.compare(f"{draft}, best γ, × target alone", best[f"{OURS} {draft}"], ratios)
    if lines.parted:
        raise CheckFailed(f"another text than the target's from {'; '.join(lines.parted)}")
    if num_measured < LEAST_WAYS:
        raise CheckFailed(f"time for {num_measured} ways alone")
    return f"{'; '.join(f'{name} {ratio:.2f} × target' for name, ratio in best.items())} ({num_measured} ways)"


def drafts_of(of: Sizes) -> list[str]:
    """Return the drafts, those of the middle acceptance first: what comes last may find no time left."""
    in_order = sorted(of.acceptances, key=lambda one: abs(one - MIDDLE))
    return [draft_name(MIDDLE), draft_name(MIDDLE, thin=True), *(draft_name(one) for one in in_order[1:])]


def gates_of(of: Sizes, draft: str) -> Iterator[GateChoice]:
    """Yield the gates that are measured with a draft, those that close at the first γ alone.

    A planted target is always sure, so a gate on its confidence stays open: what is seen is what the gate costs.
    """
    gammas = of.thin_gammas if draft.startswith(THIN) else of.gammas
    for gamma in gammas:
        yield GateChoice(Gate.NONE, gamma)
    if draft in (draft_name(MIDDLE), draft_name(MIDDLE, thin=True)):
        yield GateChoice(Gate.TARGET_CONFIDENCE, gammas[0])
        yield AUTO_GATE


def told_of(draft: str, run_ahead: int, choice: GateChoice) -> Told:
    """Return what a line says of one of our ways."""
    return {"way": OURS, "draft": draft, "run_ahead": run_ahead, "gate": str(choice.gate), "gamma": choice.gamma}
