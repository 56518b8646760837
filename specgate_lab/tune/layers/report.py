"""What a search came to: in words, as JSON, and as the skip file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specgate_lab.tune.layers.blocks import Blocks
from specgate_lab.tune.layers.predict import MeasuredTimes
from specgate_lab.tune.layers.search import RandomSets
from specgate_lab.tune.layers.study import Judged
from specgate_lab.tune.versus_target import Gain


@dataclass(frozen=True, slots=True)
class Finalist:
    """A set that was run for real: what its γ brought, and what the gate auto made of it."""

    judged: Judged
    fixed: Gain
    auto: Gain

    @property
    def best(self) -> Gain:
        """The faster one; one that hardly drafted is no draft's merit."""
        return max(self.fixed, self.auto, key=lambda one: (one.pays, one.acceptance is not None, one.ratio))


@dataclass(frozen=True, slots=True)
class SearchReport:
    """Everything that is told.

    ``finalists`` come with the best one first; ``at_random`` is the middle one of the random sets, run for real.
    """

    subject: Mapping[str, Any]
    blocks: Blocks
    times: MeasuredTimes
    harm: Mapping[str, float]
    tried: Sequence[Judged]
    random: RandomSets
    finalists: Sequence[Finalist]
    at_random: Finalist
    texts_differ: Sequence[str]
    run_ahead: bool
    skip_file: Path

    @property
    def best(self) -> Finalist:
        return self.finalists[0]

    @property
    def pays(self) -> bool:
        return self.best.best.pays

    def words(self) -> list[str]:
        """Return the advice, a sentence or two a line."""
        best, judged = self.best, self.best.judged
        predicted = judged.prediction(run_ahead=self.run_ahead)
        count = f"{self.blocks.count(judged.skip)} of {len(self.blocks.names)} blocks"
        found = f"The best of {len(self.tried)} sets leaves out {count}: {judged.skip}."
        told = (
            f"Its choice is the target's at {predicted.agreement:.0%} of the positions. Predicted, with γ "
            f"{predicted.gamma}: {judged.ahead.ratio:.2f} × the target alone with run-ahead, "
            f"{judged.on_demand.ratio:.2f} without. Run: {best.fixed}, and {best.auto} under auto."
        )
        return [self._advice(), found, told, self._against_random(), *self._warnings()]

    def _advice(self) -> str:
        best = self.best
        if not self.pays:
            return (
                "Do not draft with the target's own layers: no set of blocks is faster than the target alone for sure. "
                "Serve it alone, or with --method suffix, or make a draft: orchestrator train-draft."
            )
        gamma = best.judged.prediction(run_ahead=self.run_ahead).gamma
        gate = "--gate auto" if best.best is best.auto else f"--gate none --gamma {gamma}"
        flags = f"--method layer-skip --skip {self.skip_file} {gate}"
        return f"Draft with the target's own layers: {best.best}, with {flags}."

    def _against_random(self) -> str:
        predicted = self.best.judged.prediction(run_ahead=self.run_ahead)
        mean = self.random.mean_ratio(run_ahead=self.run_ahead)
        middle = self.at_random
        agreement = middle.judged.prediction(run_ahead=self.run_ahead).agreement
        margin = self.best.fixed.ratio - middle.fixed.ratio
        return (
            f"As many blocks at random, {len(self.random.sets)} sets: predicted {mean:.2f} × on average, where the "
            f"best set has {predicted.ratio:.2f}. The middle one of them agrees at {agreement:.0%} and was run: "
            f"{middle.fixed}. The set found is {abs(margin):.2f} × the target alone "
            f"{'faster' if margin >= 0 else 'slower'}."
        )

    def _warnings(self) -> list[str]:
        lines = []
        if self.texts_differ:
            lines.append(
                f"Texts were not the target's with: {', '.join(self.texts_differ)}. That is a fault; report it."
            )
        if self.times.misfit > 0.15:
            lines.append(
                f"What a draft takes was told by its blocks with errors of up to {self.times.misfit:.0%}: the machine "
                "was busy, or its layers are of several kinds. Trust what was run."
            )
        return lines

    def to_object(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
        return {
            "subject": dict(self.subject),
            "advice": self.words(),
            "pays": self.pays,
            "times_us": self.times.to_object(),
            "harm": dict(self.harm),
            "finalists": [_finalist(one) for one in self.finalists],
            "at_random": {
                "sets": [_judged(one) for one in self.random.sets],
                "run": _finalist(self.at_random),
            },
            "tried": [_judged(one) for one in self.tried],
        }

    def of_skip_file(self) -> dict[str, Any]:
        """Return what a skip file tells beside its blocks: where it was measured, and what it brought there."""
        wanted = ("device", "dtype", "context_tokens", "temperatures")
        return {
            **{name: self.subject[name] for name in wanted},
            "ratio_to_target": round(self.best.best.ratio, 3),
            "pays": self.pays,
        }


def _judged(one: Judged) -> dict[str, Any]:
    return {
        **one.skip.to_object(),
        "agreement": one.ahead.agreement,
        "with_run_ahead": one.ahead._asdict(),
        "without": one.on_demand._asdict(),
    }


def _finalist(one: Finalist) -> dict[str, Any]:
    return {**_judged(one.judged), "run": one.fixed.to_object(), "run_auto": one.auto.to_object()}
