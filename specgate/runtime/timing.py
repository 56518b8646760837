"""Which of two ways is faster here: timed when a model is loaded."""

from collections.abc import Callable

REPEATS = 5


def is_clearly_faster(one: Callable[[], float], other: Callable[[], float], gain: float) -> bool:
    """Return whether the first takes less than the other by a factor of ``gain``; each returns the seconds it took.

    By the best of several turns, so that a busy moment of the machine is none of one of them alone.
    """
    turns = [(one(), other()) for _ in range(REPEATS)]
    one_s, other_s = map(min, zip(*turns, strict=True))
    return one_s * gain < other_s
