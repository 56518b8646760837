"""What each part of a round took, from the stamps of all processes that it went through."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median

from round_stamps import ON_CARD, Stamp

PARTS = (
    "pack", "launch", "forwards", "choose", "read", "the engine's other steps", "drafter: thread hops",
    "verifier: thread hops", "drafter: gRPC turn", "verifier: gRPC turn", "messages", "decode loop",
)  # fmt: skip
_GAPS = {
    ("committed", "drafter asked"): "decode loop",
    ("drafter asked", "drafter has it"): "drafter: gRPC turn",
    ("drafter has it", "draft begins"): "drafter: thread hops",
    ("draft begins", "draft ends"): "the engine's other steps",
    ("draft ends", "drafter answers"): "drafter: thread hops",
    ("drafter answers", "proposal is there"): "drafter: gRPC turn",
    ("proposal is there", "verifier asked"): "decode loop",
    ("verifier asked", "verifier has it"): "verifier: gRPC turn",
    ("verifier has it", "verify begins"): "verifier: thread hops",
    ("verify begins", "verify ends"): "the engine's other steps",
    ("verify ends", "verifier answers"): "verifier: thread hops",
    ("verifier answers", "verdict is there"): "verifier: gRPC turn",
    ("verdict is there", "committed"): "decode loop",
    # In one process:
    ("committed", "drafter has it"): "decode loop",
    ("draft ends", "proposal is there"): "drafter: thread hops",
    ("proposal is there", "verifier has it"): "decode loop",
    ("verify ends", "verdict is there"): "verifier: thread hops",
}
_MARKS = {mark for gap in _GAPS for mark in gap}
_PART_OF = {"forward": "forwards", "message": "messages"}
"""Timed steps whose part is called otherwise."""
BESIDE = "beside its forwards"
Round = Mapping[str, float]
"""Microseconds by part; ``round`` is all of it, ``on the card`` what its forwards take there."""


def rounds_of(stamps: Sequence[Stamp], whole_only: bool) -> Iterator[Round]:
    """Yield the parts of each round that stands between two commits.

    Args:
        stamps: of all processes, in order.
        whole_only: tell how long it was, and nothing else.
    """
    committed = [place for place, (_, name, _) in enumerate(stamps) if name == "committed"]
    for begin, end in pairwise(committed):
        parts = {} if whole_only else _parts(stamps[begin : end + 1])
        if parts is not None:
            yield {**parts, "round": (stamps[end][0] - stamps[begin][0]) / 1e3}


def _parts(stamps: Sequence[Stamp]) -> Round | None:
    """Return the microseconds of each part; None where the round did not go all the way, such as a request's last."""
    marks = [stamp for stamp in stamps if stamp[1] in _MARKS]
    parts: Counter[str] = Counter()
    for (begin, before, _), (end, after, _) in pairwise(marks):
        if (before, after) not in _GAPS:
            return None
        gap = _GAPS[before, after]
        parts[gap] += end - begin
        steps = [one for one in stamps if begin <= one[0] < end and one[2] > one[0]]
        parts[ON_CARD] += sum(last - first for first, name, last in steps if name == ON_CARD)
        for step, nanoseconds in _exclusive([one for one in steps if one[1] != ON_CARD]):
            parts[_PART_OF.get(step, step)] += nanoseconds
            parts[gap] -= nanoseconds
    return {part: nanoseconds / 1e3 for part, nanoseconds in parts.items()}


def _exclusive(steps: Sequence[Stamp]) -> Iterator[tuple[str, int]]:
    """Yield each timed step's nanoseconds without those of the steps within it."""
    for begin, name, end in steps:
        within = [one for one in steps if begin <= one[0] and one[2] <= end and one != (begin, name, end)]
        outermost = [one for one in within if not any(_holds(other, one) for other in within if other != one)]
        yield name, end - begin - sum(last - first for first, _, last in outermost)


def _holds(outer: Stamp, inner: Stamp) -> bool:
    return outer[0] <= inner[0] and inner[2] <= outer[2]


def medians_of(rounds: Sequence[Round]) -> dict[str, float]:
    """Return each part's median, what all of them leave of the round's, and that without its forwards."""
    parts = {part: median(one.get(part, 0.0) for one in rounds) for part in PARTS if any(part in one for one in rounds)}
    whole = median(one["round"] for one in rounds)
    if not parts:
        return {"round": whole, "rounds": len(rounds)}
    told = {**parts, "rest": whole - sum(parts.values()), "round": whole}
    if any(one[ON_CARD] for one in rounds):
        told["forwards, on the card"] = median(one[ON_CARD] for one in rounds)
    beside = median(one["round"] - one.get("forwards", 0.0) - one[ON_CARD] for one in rounds)
    return {**told, BESIDE: beside, "rounds": len(rounds)}
