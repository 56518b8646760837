"""What a choice would have come to on the texts of lately."""

from collections.abc import Sequence
from typing import NamedTuple

from orchestrator.auto.history import Text
from orchestrator.auto.options import EASY_BUCKET, Choice, Outcome

FINER = 997
"""A number in [0, 1) times this, less its whole part, is another one."""


class Ahead(NamedTuple):
    """What is prepared, each by the γ of the round before.

    The chance that a proposal is there: ``foreseen`` where all of the draft stood and the draft agrees on the target's
    own token behind it too, ``others`` elsewhere; ``lengths``: how long it is then, on average. ``told``: of those that
    are as long as is wanted, by that γ, how many need not be asked for, since the drafter has told of them in time.
    """

    foreseen: Sequence[float]
    others: Sequence[float]
    lengths: Sequence[float]
    told: Sequence[float]


class Times(NamedTuple):
    """What rounds take besides their forward and the wait before it, in microseconds.

    ``asked_us``: by γ, where nothing is there; ``ready_us``: by γ and how many tokens are; ``solo_us``: of a token that
    is streamed; ``wait``: forwards that a round waits.
    """

    asked_us: Sequence[float]
    ready_us: Sequence[Sequence[float]]
    solo_us: float
    wait: float


def rehearse(text: Text, choice: Choice, times: Times, ahead: Ahead | None) -> Outcome:
    """Cut ``text`` into the rounds of ``choice``, and return what they come to on average.

    Args:
        ahead: None: nothing is ever prepared, or it is not looked for.
    """
    buckets, runs, ready, luck = text
    closed, end = choice.closed, len(runs)
    most = len(times.asked_us) - 1
    num_rounds = num_solo = num_drafted = num_ready = position = 0
    besides_us, stood = 0.0, True
    while position < end:
        bucket = buckets[position]
        if bucket < closed:
            num_solo += 1
            gamma, run = 0, 0
        else:
            easy = stood and bucket >= EASY_BUCKET
            gamma = choice.gamma(num_ready, easy=easy)
            besides_us += times.ready_us[gamma][num_ready] if num_ready else times.asked_us[gamma]
            num_rounds += 1
            num_drafted += gamma
            run = runs[position]
        stood = run >= gamma
        position += min(run, gamma)
        foreseen = stood and position < end and runs[position] > 0
        position += 1
        if ahead is not None and position < end:
            chance = (ahead.foreseen if foreseen else ahead.others)[gamma]
            drawn = luck[position]
            is_ready = drawn < chance if (known := ready[position]) is None else known
            num_ready = min(int(ahead.lengths[gamma] + drawn * FINER % 1), most) if is_ready else 0
    steps = num_rounds + num_solo
    besides_us += num_solo * times.solo_us
    return Outcome(end / steps, num_drafted / steps + 1, besides_us / steps, times.wait * num_rounds / steps)
