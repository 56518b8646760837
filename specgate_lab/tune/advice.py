"""The advice: what to use, the gain of each part of it, and when not to draft at all. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specgate.types import DraftMethod, Verification
from specgate_lab.bench.row_names import TARGET
from specgate_lab.experiment import Samples
from specgate_lab.gate_choice import AUTO_GATE
from specgate_lab.tune.candidates import Choice, DrafterChoice
from specgate_lab.tune.compare import Tried, name_in_other_mode, other_mode
from specgate_lab.tune.versus_target import WORTH_IT, Gain, fault_words, gain_of, in_brackets


@dataclass(frozen=True, slots=True)
class FinalRound:
    """The final round in the mode ``verification``; some choices were measured in the other mode too.

    ``default`` is the choice that is served by default, None where that is the target alone. ``texts_differ`` are the
    choices whose texts were not the target's.
    """

    choices: Sequence[Choice]
    samples: Samples
    verification: Verification
    default: Choice | None = None
    texts_differ: frozenset[str] = frozenset()

    def gain(self, choice: Choice, over: Choice | None = None) -> Gain:
        """Return the gain of a choice over another one, or over the target alone."""
        return gain_of(str(choice), self.samples, TARGET if over is None else str(over))

    def gain_of_other_mode(self, choice: Choice) -> Gain | None:
        """Return the gain of the other mode over this one, None where it was not measured with this choice."""
        name = name_in_other_mode(choice)
        return gain_of(name, self.samples, str(choice)) if name in self.samples else None


@dataclass(frozen=True, slots=True)
class Advice:
    """A choice, None for the target alone, and the mode to serve it in."""

    choice: Choice | None
    verification: Verification
    finals: Mapping[Choice, Gain]
    tried: Sequence[Tried]
    parts: Mapping[str, Gain] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def words(self) -> list[str]:
        """Return the advice, a sentence or two a line."""
        parts = (f"{what}: {gain.ratio:.2f} ×{in_brackets(gain.interval)}." for what, gain in self.parts.items())
        return [self._what_to_do(), *parts, *self.notes]

    def to_object(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
        return {
            "advice": self.words(),
            "choice": None if self.choice is None else self.choice.to_object(),
            "verification": str(self.verification),
            "parts": [{"what": what, **gain.to_object()} for what, gain in self.parts.items()],
            "finals": [{**one.to_object(), **gain.to_object()} for one, gain in self.finals.items()],
            "tried": [{**one.choice.to_object(), **one.gain.to_object()} for one in self.tried],
        }

    def _what_to_do(self) -> str:
        if self.choice is not None:
            return f"Draft with {self.choice}: {self.finals[self.choice]}."
        best = max(self.finals, key=lambda one: self.finals[one].ratio)
        return (
            f"Serve the target alone. Of {len(self.tried)} ways to draft {best} looked best: {self.finals[best]}. "
            f"A way must draft, be {WORTH_IT} times as fast as the target alone, and have its interval above 1."
        )


def finalists(tried: Sequence[Tried], default: Choice | None) -> list[Choice]:
    """Return the choices for the final round, the one that looks best first.

    Beside the best ones these are the choices that show the worth of each part of the best: its drafter under ``auto``,
    the same gate without run-ahead, or with it, and what is served by default.
    """
    ordered = [one.choice for one in sorted(tried, key=lambda one: -one.gain.ratio)]
    best, known = ordered[0], {one.choice for one in tried}
    others = [one for one in ordered if one.drafter.method is not best.drafter.method]
    asked = [best, Choice(best.drafter, AUTO_GATE), *(one for one in ordered if _differs_by_run_ahead(one, best))]
    asked += [one for one in (default, *others[:1], *ordered[1:2]) if one is not None]
    return [one for one in dict.fromkeys(asked) if one in known]


def advise(tried: Sequence[Tried], final: FinalRound, drafters: Sequence[DrafterChoice], *, allow_mode: bool) -> Advice:
    """Return what to do.

    Args:
        drafters: that could be started.
        allow_mode: take the other mode where it is faster for sure.
    """
    finals = {choice: final.gain(choice) for choice in final.choices}
    best = _best(final, finals)
    notes = [*fault_words(final.texts_differ), *_on_mode(best or final.choices[0], final)]
    if best is None:
        return Advice(None, final.verification, finals, tried, {}, [*notes, *_instead(drafters)])
    parts, other = _parts(best, final, finals), final.gain_of_other_mode(best)
    if allow_mode and other is not None and other.pays:
        taken = other_mode(final.verification)
        notes.append(f"The configuration says verification {taken}: another mode, another text for the same seed.")
        return Advice(best, taken, finals, tried, parts, notes)
    return Advice(best, final.verification, finals, tried, parts, notes)


def _best(final: FinalRound, finals: Mapping[Choice, Gain]) -> Choice | None:
    """Return the fastest way that pays, None where none does.

    A fixed gate is taken over an ``auto`` that pays too only where it is faster for sure and by ``WORTH_IT``: ``auto``
    adapts by itself to other texts and load.
    """
    paying = [one for one, gain in finals.items() if gain.pays and str(one) not in final.texts_differ]
    if not paying:
        return None
    best = max(paying, key=lambda one: finals[one].ratio)
    automatic = Choice(best.drafter, AUTO_GATE)
    if automatic == best or automatic not in paying or final.gain(best, automatic).pays:
        return best
    return automatic


def _parts(best: Choice, final: FinalRound, finals: Mapping[Choice, Gain]) -> dict[str, Gain]:
    """Return the gain of each part of the best choice, as far as it was measured without it."""
    against: dict[str, Choice | None] = {
        _run_ahead_words(best): next((one for one in finals if _differs_by_run_ahead(one, best)), None),
        "The gate, over auto": Choice(best.drafter, AUTO_GATE),
        "All of it, over what is served by default": final.default,
    }
    others = [one for one in finals if one.drafter.method is not best.drafter.method]
    if others:
        rival = max(others, key=lambda one: finals[one].ratio)
        against[f"The source, over the next one ({rival})"] = rival
    return {
        what: final.gain(best, other)
        for what, other in against.items()
        if other is not None and other != best and other in finals
    }


def _differs_by_run_ahead(one: Choice, other: Choice) -> bool:
    same_source = one.drafter.method is other.drafter.method
    return same_source and one.drafter != other.drafter and one == other._replace(drafter=one.drafter)


def _run_ahead_words(best: Choice) -> str:
    method = best.drafter.method
    return f"Run-ahead, over {method} without" if best.drafter.run_ahead else f"{method} without run-ahead, over with"


def _on_mode(choice: Choice, final: FinalRound) -> list[str]:
    if all(name not in final.samples for name in map(name_in_other_mode, final.choices)):
        return ["Both verification modes are the same at temperature 0."]
    gain = final.gain_of_other_mode(choice)
    if gain is None:
        return []
    other = other_mode(final.verification)
    words = f"Verification {other} instead of {final.verification}: {gain.ratio:.2f} ×{in_brackets(gain.interval)}."
    return [f"{words} It changes what a seed gives, so it is taken with --allow-mode alone."]


def _instead(drafters: Sequence[DrafterChoice]) -> list[str]:
    if DraftMethod.MODEL in {one.method for one in drafters}:
        return []
    return ["A draft can be made from texts of the target: orchestrator train-draft."]
