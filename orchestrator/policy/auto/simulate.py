"""What a choice would have come to on the texts of lately."""

from collections.abc import Sequence
from typing import NamedTuple

from orchestrator.policy.auto.history import TokenHistory
from orchestrator.policy.auto.options import EASY_BUCKET, PlanChoice, RoundYield


class Ahead(NamedTuple):
    """The chance that a proposal has been begun when it is asked for, by the γ of the round before.

    ``foreseen`` where all of the draft stood and the draft agrees on the target's own token behind it too,
    ``others`` elsewhere.
    """

    foreseen: Sequence[float]
    others: Sequence[float]


class Times(NamedTuple):
    """What rounds take besides their forward and the wait before it, in microseconds, if so much is always prepared.

    By γ, ``asked_us``: where nothing is there; ``begun_us``: where the draft has been begun; ``lone_us``: what the
    forward takes more than by the line. ``solo_us``: of a streamed token; ``wait``: forwards that a lone
    session's round waits.
    """

    asked_us: Sequence[float]
    begun_us: Sequence[float]
    solo_us: float
    wait: float
    lone_us: Sequence[float]


def rehearse(text: TokenHistory, choice: PlanChoice, times: Times, ahead: Ahead | None) -> RoundYield:
    """Cut ``text`` into the rounds of ``choice``, and return what they come to on average.

    Args:
        times: where as much is prepared as the choice drafts at the most.
        ahead: None: nothing is ever prepared.
    """
    buckets, runs, ready, luck = text
    asked_us, begun_us, solo_us, wait, more_us = times
    closed, end = choice.closed, len(runs)
    num_rounds = num_solo = num_drafted = position = 0
    besides_us = lone_us = 0.0
    fully_accepted, is_begun = True, False
    while position < end:
        bucket = buckets[position]
        if bucket < closed:
            num_solo += 1
            gamma = run = 0
        else:
            easy = fully_accepted and bucket >= EASY_BUCKET
            gamma = choice.gamma(easy=easy)
            besides_us += begun_us[gamma] if is_begun else asked_us[gamma]
            num_rounds += 1
            num_drafted += gamma
            run = runs[position]
        lone_us += more_us[gamma]
        fully_accepted = run >= gamma
        position += min(run, gamma)
        foreseen = fully_accepted and position < end and runs[position] > 0
        position += 1
        if ahead is not None and position < end:
            chance = (ahead.foreseen if foreseen else ahead.others)[gamma]
            is_begun = luck[position] < chance if (known := ready[position]) is None else known
    steps = num_rounds + num_solo
    besides_us += num_solo * solo_us
    waits, alone = wait * num_rounds / steps, num_solo / steps
    return RoundYield(end / steps, num_drafted / steps + 1, besides_us / steps, waits, alone, lone_us / steps)
