"""The result of a search: in words, as JSON, and as the skip file."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from specgate_lab.tune.layers.blocks import Blocks
from specgate_lab.tune.layers.predict import Judged, MeasuredTimes
from specgate_lab.tune.versus_target import Gain, fault_words

MISFIT = 0.15
"""More than this is worth a warning: predictions rank sets that differ by less."""


@dataclass(frozen=True, slots=True)
class Finalist:
    """A set that was run for real: its gain with a fixed γ, and under the gate auto."""

    judged: Judged
    fixed: Gain
    auto: Gain

    @property
    def best(self) -> Gain:
        """The faster one. A gain without drafts is no merit of the set."""
        return max(self.fixed, self.auto, key=lambda one: (one.pays, one.acceptance is not None, one.ratio))

    def to_object(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
        return {**self.judged.to_object(), "run": self.fixed.to_object(), "run_auto": self.auto.to_object()}


@dataclass(frozen=True, slots=True)
class SearchReport:
    """Everything that was found.

    ``finalists`` begin with the best one; ``at_random`` is the middle one of the random sets, run for real.
    """

    subject: Mapping[str, Any]
    blocks: Blocks
    times: MeasuredTimes
    harm: Mapping[str, float]
    tried: Sequence[Judged]
    random: Sequence[Judged]
    finalists: Sequence[Finalist]
    at_random: Finalist
    texts_differ: Sequence[str]
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
        predicted = judged.prediction
        count = f"{self.blocks.count(judged.skip)} of {len(self.blocks.names)} blocks"
        found = f"The best of {len(self.tried)} sets leaves out {count}: {judged.skip}."
        predicted_and_run = (
            f"Its choice is the target's at {predicted.agreement:.0%} of the positions. Predicted, with γ "
            f"{predicted.gamma}: {predicted.ratio:.2f} × the target alone. Run: {best.fixed}, and {best.auto} under "
            "auto."
        )
        return [self._advice(), found, predicted_and_run, self._against_random(), *self._warnings()]

    def _advice(self) -> str:
        best = self.best
        if not self.pays:
            return (
                "Do not draft with the target's own layers: no set of blocks is faster than the target alone for sure. "
                "Serve it alone, or with --method suffix, or make a draft: orchestrator train-draft."
            )
        gate = "--gate auto" if best.best is best.auto else f"--gate none --gamma {best.judged.prediction.gamma}"
        flags = f"--method layer-skip --skip {self.skip_file} {gate}"
        return f"Draft with the target's own layers: {best.best}, with {flags}."

    def _against_random(self) -> str:
        middle, margin = self.at_random, self.best.fixed.ratio - self.at_random.fixed.ratio
        average = mean(one.ratio for one in self.random)
        return (
            f"As many blocks at random, {len(self.random)} sets: predicted {average:.2f} × on average, where the best "
            f"set has {self.best.judged.ratio:.2f}. The middle one of them agrees at "
            f"{middle.judged.prediction.agreement:.0%} and was run: {middle.fixed}. The set found is "
            f"{abs(margin):.2f} × the target alone {'faster' if margin >= 0 else 'slower'}."
        )

    def _warnings(self) -> list[str]:
        lines = fault_words(self.texts_differ)
        if self.times.misfit > MISFIT:
            lines.append(
                f"The blocks explain the time of a draft with errors of up to {self.times.misfit:.0%}: the machine was "
                "busy, or its layers are of several kinds. Trust the runs."
            )
        return lines

    def to_object(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
        return {
            "subject": dict(self.subject),
            "advice": self.words(),
            "pays": self.pays,
            "times_us": asdict(self.times),
            "harm": dict(self.harm),
            "finalists": [one.to_object() for one in self.finalists],
            "at_random": {"sets": [one.to_object() for one in self.random], "run": self.at_random.to_object()},
            "tried": [one.to_object() for one in self.tried],
        }

    def of_skip_file(self) -> dict[str, Any]:
        """Return what a skip file holds beside its blocks: where it was measured, and its gain there."""
        wanted = ("device", "dtype", "context_tokens", "temperatures")
        return {
            **{name: self.subject[name] for name in wanted},
            "ratio_to_target": round(self.best.best.ratio, 3),
            "pays": self.pays,
        }
