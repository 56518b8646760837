"""How well a confidence foretells that a draft token is accepted. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Self

from specgate_lab.replay.trace import TracedText

NUM_BINS = 10
GRID_EDGES = (0.3, 0.5, 0.7, 0.9)
"""Between the cells of a grid, for both confidences."""

Outcome = tuple[float, bool]
"""A confidence, and whether the token was accepted."""


class JudgedToken(NamedTuple):
    """A draft token that the target accepted or rejected. ``place`` in its proposal counts from 0.

    ``draft`` is the draft's probability of it, ``target`` the target's confidence in the token before it.
    """

    place: int
    draft: float
    target: float
    accepted: bool


def judged_tokens(text: TracedText, gamma: int) -> Iterator[JudgedToken]:
    """Yield the draft tokens that rounds of ``gamma`` judge, without those of which something is not known.

    These are the text's first token, which no confidence comes before, and what the trace leaves open.
    """
    start = 0
    while start < len(text):
        num_accepted = text.survivors(start, gamma)
        for place in range(min(num_accepted + 1, gamma, len(text) - start)):
            at = start + place
            draft, agrees = text.draft_confidences[at], text.agrees[at]
            if at and draft is not None and agrees is not None:
                yield JudgedToken(place, draft, text.confidences[at - 1], agrees)
        start += num_accepted + 1


class Bin(NamedTuple):
    """Tokens of about the same confidence: the mean of it, the share that was accepted, and how many there are."""

    confidence: float
    accepted: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """How one confidence relates to acceptance.

    ``error`` is the expected calibration error: how far acceptance is from confidence, as the mean over tokens in bins
    of equal count. ``area`` is that under the ROC curve: how often an accepted token has more confidence than a
    rejected one, a tie counting half; None where there are not both.
    """

    bins: tuple[Bin, ...]
    error: float
    area: float | None

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> Self:
        """Return the calibration on one or more outcomes."""
        bins = equal_bins(outcomes)
        error = sum(one.tokens * abs(one.accepted - one.confidence) for one in bins) / len(outcomes)
        return cls(bins, error, area_under_curve(outcomes))


def equal_bins(outcomes: Sequence[Outcome]) -> tuple[Bin, ...]:
    """Return bins by rising confidence whose counts differ by one at the most: ``NUM_BINS``, or one an outcome."""
    ordered, count = sorted(outcomes, key=lambda one: one[0]), min(NUM_BINS, len(outcomes))
    edges = [number * len(ordered) // count for number in range(count + 1)]
    return tuple(_bin(ordered[low:high]) for low, high in pairwise(edges))


def _bin(outcomes: Sequence[Outcome]) -> Bin:
    num = len(outcomes)
    return Bin(sum(one for one, _ in outcomes) / num, sum(accepted for _, accepted in outcomes) / num, num)


def area_under_curve(outcomes: Sequence[Outcome]) -> float | None:
    """Return the area under the ROC curve, by counting pairs (Mann and Whitney, 1947)."""
    rejected = sorted(confidence for confidence, accepted in outcomes if not accepted)
    below = ties = num_accepted = 0
    for confidence, accepted in outcomes:
        if accepted:
            num_accepted += 1
            num_below = bisect_left(rejected, confidence)
            below, ties = below + num_below, ties + bisect_right(rejected, confidence) - num_below
    num_pairs = num_accepted * len(rejected)
    return (below + ties / 2) / num_pairs if num_pairs else None


class Cell(NamedTuple):
    """Tokens of one cell of a grid: the share that was accepted, None without any."""

    accepted: float | None
    tokens: int


def grid(tokens: Sequence[JudgedToken]) -> list[list[Cell]]:
    """Return acceptance by the target's confidence (rows) and the draft's (columns), between ``GRID_EDGES``."""
    size = len(GRID_EDGES) + 1
    cells: list[list[list[bool]]] = [[[] for _ in range(size)] for _ in range(size)]
    for one in tokens:
        cells[bisect_right(GRID_EDGES, one.target)][bisect_right(GRID_EDGES, one.draft)].append(one.accepted)
    return [[Cell(sum(cell) / len(cell) if cell else None, len(cell)) for cell in row] for row in cells]


@dataclass(frozen=True, slots=True)
class Signals:
    """Some judged tokens: how many, the share that was accepted, and the calibration of both confidences."""

    tokens: int
    accepted: float
    draft: Calibration
    target: Calibration

    @classmethod
    def of(cls, tokens: Sequence[JudgedToken]) -> Self:
        """Return what one or more tokens come to."""
        return cls(
            len(tokens),
            sum(one.accepted for one in tokens) / len(tokens),
            Calibration.of([(one.draft, one.accepted) for one in tokens]),
            Calibration.of([(one.target, one.accepted) for one in tokens]),
        )


@dataclass(frozen=True, slots=True)
class PairCalibration:
    """Of a pair at one temperature: all judged tokens, those of each place in a proposal, and a ``grid``."""

    temperature: float
    all: Signals
    places: dict[int, Signals]
    grid: list[list[Cell]]

    @classmethod
    def of(cls, temperature: float, tokens: Sequence[JudgedToken]) -> Self:
        """Return what one or more tokens come to."""
        places = sorted({one.place for one in tokens})
        by_place = {place: Signals.of([one for one in tokens if one.place == place]) for place in places}
        return cls(temperature, Signals.of(tokens), by_place, grid(tokens))

    def to_object(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
        return asdict(self)
