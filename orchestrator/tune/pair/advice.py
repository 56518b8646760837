"""What to use, what each part of it brings, and when not to draft at all. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.bench.throughput.samples import TARGET, Sample
from orchestrator.policy.gates import Gate
from orchestrator.tune.pair.candidates import Choice
from orchestrator.tune.pair.compare import OTHER_MODE, Tried, other_mode
from orchestrator.tune.versus_target import WORTH_IT, Brought, brought, told_interval
from specgate.types import DraftMethod, Verification


@dataclass(frozen=True, slots=True)
class Compared:
    """A part of the choice: what it is measured against, and what it brings over that."""

    what: str
    over: Brought


@dataclass(frozen=True, slots=True)
class Advice:
    """What was measured, and what follows from it. ``choice`` None is the target alone."""

    choice: Choice | None
    brought: Brought | None
    finals: Mapping[Choice, Brought]
    tried: Sequence[Tried]
    parts: Sequence[Compared] = ()
    default: Choice | None = None
    verification: Verification | None = None
    notes: Sequence[str] = field(default_factory=tuple)

    def words(self) -> list[str]:
        """Return the advice, a sentence or two a line."""
        return [
            self._what_to_do(),
            *(f"{part.what}: {part.over.ratio:.2f} ×{told_interval(part.over.interval)}." for part in self.parts),
            *self.notes,
        ]

    def _what_to_do(self) -> str:
        if self.choice is not None:
            return f"Draft with {self.choice}: {self.brought}."
        if not self.finals:
            return "Serve the target alone: there is nothing to draft with."
        best = max(self.finals, key=lambda one: self.finals[one].ratio)
        return (
            f"Serve the target alone. The best of {len(self.tried)} ways to draft is {best}: {self.finals[best]}; "
            f"less than {WORTH_IT:.2f} for sure is not worth a second service."
        )


def finalists(tried: Sequence[Tried], default: Choice | None) -> list[Choice]:
    """Return the choices for the final round, the one that looks best first.

    Beside the best ones these are what tells the worth of each part of the best: its drafter under ``auto``, the same
    gate without run-ahead, or with it, and what would be served by default.
    """
    ordered = [one.choice for one in sorted(tried, key=lambda one: -one.brought.ratio)]
    best, known = ordered[0], {one.choice for one in tried}
    others = [one for one in ordered if one.drafter.method is not best.drafter.method]
    asked = [best, Choice(best.drafter, Gate.AUTO), *(one for one in ordered if _differs_by_run_ahead(one, best))]
    asked += [one for one in (default, *others[:1], *ordered[1:2]) if one is not None]
    return [one for one in dict.fromkeys(asked) if one in known]


def _differs_by_run_ahead(one: Choice, other: Choice) -> bool:
    return (
        one.drafter != other.drafter
        and one == other._replace(drafter=one.drafter)
        and (one.drafter.method is other.drafter.method)
    )


def advise(
    tried: Sequence[Tried],
    choices: Sequence[Choice],
    samples: Mapping[str, Sequence[Sample]],
    default: Choice | None,
    verification: Verification,
    *,
    allow_mode: bool,
) -> Advice:
    """Return what to do.

    A fixed gate is taken over ``auto`` where it is faster for sure and by ``WORTH_IT``: ``auto`` finds out by itself
    when the text or the load is another one.
    """
    finals = {choice: brought(str(choice), samples) for choice in choices}
    best = max(finals, key=lambda one: finals[one].ratio)
    automatic = Choice(best.drafter, Gate.AUTO)
    if automatic in finals and not _surely_faster(best, automatic, samples):
        best = automatic
    notes = list(_notes(best, samples, verification))
    if not finals[best].pays:
        return Advice(None, None, finals, tried, (), default, None, [*_instead(tried), *notes])
    mode = _mode(best, samples, verification) if allow_mode else None
    return Advice(best, finals[best], finals, tried, _parts(best, finals, samples, default), default, mode, notes)


def _surely_faster(one: Choice, other: Choice, samples: Mapping[str, Sequence[Sample]]) -> bool:
    return one != other and brought(str(one), samples, str(other)).pays


def _parts(
    best: Choice, finals: Mapping[Choice, Brought], samples: Mapping[str, Sequence[Sample]], default: Choice | None
) -> list[Compared]:
    """Return what each part of the best choice brings, as far as it was measured without it."""
    against: dict[str, Choice | None] = {
        _run_ahead_words(best): next((one for one in finals if _differs_by_run_ahead(one, best)), None),
        "The gate, over auto": Choice(best.drafter, Gate.AUTO),
        "All of it, over what is served by default": default,
    }
    rival = max(
        (one for one in finals if one.drafter.method is not best.drafter.method),
        key=lambda one: finals[one].ratio,
        default=None,
    )
    if rival is not None:
        against[f"The source, over the next one ({rival})"] = rival
    return [
        Compared(what, brought(str(best), samples, str(other)))
        for what, other in against.items()
        if other is not None and other != best and other in finals
    ]


def _run_ahead_words(best: Choice) -> str:
    method = best.drafter.method
    return f"Run-ahead, over {method} without" if best.drafter.run_ahead else f"{method} without run-ahead, over with"


def _notes(best: Choice, samples: Mapping[str, Sequence[Sample]], verification: Verification) -> list[str]:
    if OTHER_MODE not in samples:
        return ["Both verification modes are the same at temperature 0."]
    first = next(name for name in samples if name not in (TARGET, OTHER_MODE))
    other = brought(OTHER_MODE, samples, first)
    return [
        f"Verification {other_mode(verification)} instead of {verification}, with {first}: {other.ratio:.2f} ×"
        f"{told_interval(other.interval)}. It changes what a seed gives, so it is taken with --allow-mode alone."
    ]


def _mode(best: Choice, samples: Mapping[str, Sequence[Sample]], verification: Verification) -> Verification | None:
    """Return the other mode where it is faster for sure."""
    first = next(name for name in samples if name not in (TARGET, OTHER_MODE))
    if OTHER_MODE in samples and first == str(best) and brought(OTHER_MODE, samples, first).pays:
        return other_mode(verification)
    return None


def _instead(tried: Sequence[Tried]) -> list[str]:
    methods = {one.choice.drafter.method for one in tried}
    if DraftMethod.MODEL in methods:
        return []
    return [
        "No draft model was given. One can be made from texts of the target: orchestrator train-draft. Its own layers "
        "may draft for it: orchestrator tune layers."
    ]


def to_object(advice: Advice) -> dict[str, Any]:
    """Return all of it as JSON has it."""
    return {
        "advice": advice.words(),
        "choice": None if advice.choice is None else choice_object(advice.choice),
        "parts": [{"what": part.what, **part.over.to_object()} for part in advice.parts],
        "finals": [{**choice_object(one), **found.to_object()} for one, found in advice.finals.items()],
        "tried": [{**choice_object(one.choice), **one.brought.to_object()} for one in advice.tried],
    }


def choice_object(choice: Choice) -> dict[str, Any]:
    """Return a choice as JSON has it."""
    return {
        "method": str(choice.drafter.method),
        "run_ahead": choice.drafter.run_ahead,
        "gate": str(choice.gate),
        "gamma": choice.gamma,
    }
