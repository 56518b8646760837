"""``auto`` for one session: follows the learner's choice, and tries now and then what is not chosen.

Lossless by what it may look at: the target's confidence in committed tokens, the length of the text, and the rounds of
all sessions that are over, but for those that the learner was not told of yet: how many of their tokens were judged and
stood, how long they took, how many sessions shared their forwards. A pending proposal has no way in: ``plan`` is
called before the draft is asked for, and nothing is observed before a verdict is committed. So neither the values of a
proposal nor the time that they took, nor whether it was prepared, decide whether it is used; they decide about later
rounds alone, whose draft randomness is another.

When to try what is not chosen is counted, not drawn: the policy has no randomness that could meet the text's.
"""

from dataclasses import replace
from itertools import cycle
from typing import Protocol

from orchestrator.policy.auto.agreement import bucket_of
from orchestrator.policy.auto.choice import Table
from orchestrator.policy.auto.observation import Mode
from orchestrator.policy.auto.options import EASY_BUCKET, EASY_FROM
from orchestrator.policy.gates import ExpectedPlan, Progress, RoundPlan
from specgate.types import ALWAYS_SOLO

CALIBRATION, CALIBRATE_ALONE_EVERY = (3, 1, 5, 2, 6, 4), 4
"""γ of the first rounds of all, so that costs are known as a function of γ; and of the target alone."""
VARY_EVERY, VARY_EVERY_AT_FIRST, FIRST_ROUNDS = 64, 32, 512
"""Rounds of a mode between two that draft farther than chosen, or less far, so that what that costs is known, and how
often it is prepared. It loses little: what is near the best is nearly as good."""
VARIED_BY = -1, 1, -2, 1, -3
"""In draft tokens, in turns; of two rounds each, of which the second finds as many prepared as it asks for."""
ALONE_EVERY, ALONE_AFTER = 256, 64
"""Rounds between two that end with one solo token whatever is chosen: what the target alone takes must be known."""
PROBE_ROUNDS = 2
"""For the first of them a token is prepared at the most: it tells whether the draft agrees, and nothing of costs."""
PROBE_FLOOR = 0.1
"""In solo tokens: the least that a probe is booked with."""


class Choices(Protocol):
    """What a policy asks of the learner."""

    def table(self, mode: Mode, max_gamma: int) -> Table | None: ...

    def book_probe(self, mode: Mode, loss_us: float, floor_us: float) -> bool: ...

    def solo_run(self) -> int: ...

    def next_round(self, mode: Mode) -> int: ...

    def standing(self, mode: Mode, max_gamma: int) -> Table | None: ...

    def coming_round(self, mode: Mode) -> int: ...


class Auto:
    """``auto``: γ by the target's confidence and by what stood, 0 included.

    Args:
        max_gamma: the most that the request allows.
    """

    def __init__(self, choices: Choices, mode: Mode, max_gamma: int) -> None:
        self._choices = choices
        self._mode = mode
        self._max_gamma = max_gamma
        self._calibration = cycle(CALIBRATION)
        self._round = 0
        self._probes_left = 0
        self._varied = self._instead_of = 0
        """What the next round tries, and what had been chosen where that began."""

    def plan(self, session: Progress) -> RoundPlan:
        """Return the next round's plan."""
        table = self._choices.table(self._mode, self._max_gamma)
        self._round = self._choices.next_round(self._mode)
        plan = self._calibrate() if table is None else self._by(table, session)
        return replace(plan, prepare=self._longest(table))

    def plan_ahead(self, session: Progress) -> ExpectedPlan | None:
        """Return the next round's plan where it follows the choice in use, and tries nothing."""
        table = self._choices.standing(self._mode, self._max_gamma)
        if table is None or self._varied or not table.choice.drafts:
            return None
        number = self._choices.coming_round(self._mode)
        if _ends_alone(number) or _varies(number):
            return None
        choice = table.choice
        easy = session.fully_accepted and choice.easy != choice.hard
        plan = self._with_gate(choice.gamma(easy=easy), table, session)
        least_confidence = max(choice.solo_below, EASY_FROM) if easy else choice.solo_below
        return ExpectedPlan(replace(plan, chosen=table.number, prepare=choice.easy), least_confidence)

    def _longest(self, table: Table | None) -> int:
        # No longer than it will be used: a miss waits for the forward of those that were not.
        if table is None:
            return min(max(CALIBRATION), self._max_gamma)
        if self._varied:
            return self._varied
        if table.choice.drafts:
            return table.choice.easy
        return table.choice.hard if self._probes_left else 1

    def _calibrate(self) -> RoundPlan:
        gamma = min(next(self._calibration), self._max_gamma)
        return RoundPlan(gamma) if self._round % CALIBRATE_ALONE_EVERY else _ending_alone(gamma)

    def _by(self, table: Table, session: Progress) -> RoundPlan:
        bucket = bucket_of(session.confidence)
        if bucket < table.choice.closed:
            return self._closed(table, session)
        gamma = table.choice.gamma(easy=bucket >= EASY_BUCKET and session.fully_accepted)
        if _ends_alone(self._round):
            return _ending_alone(gamma)
        if varied := self._vary(gamma):
            return self._open(table, varied, session)
        return replace(self._open(table, gamma, session), chosen=table.number)

    def _vary(self, gamma: int) -> int:
        """Return how many draft tokens to try instead of ``gamma``, which counts as none that was chosen; 0: none."""
        if self._varied:
            varied, self._varied = self._varied, 0
            # Hard text behind easy text may be worth much less.
            return varied if gamma == self._instead_of else gamma
        if _varies(self._round):
            by = VARIED_BY[self._round // _every(self._round) % len(VARIED_BY)]
            varied = min(max(gamma + by, 1), self._max_gamma)
            self._varied, self._instead_of = varied if varied != gamma else 0, gamma
        return self._varied

    def _open(self, table: Table, gamma: int, session: Progress) -> RoundPlan:
        if table.choice.closed:
            self._probe_if_due(table)
        else:
            self._probes_left = 0
        return self._with_gate(gamma, table, session)

    def _closed(self, table: Table, session: Progress) -> RoundPlan:
        self._varied = 0
        if self._probe_if_due(table):
            self._probes_left -= 1
            # Where drafting does not pay the text counts as hard.
            return self._with_gate(table.choice.hard, table, session)
        return replace(self._with_gate(0, table, session), chosen=table.number)

    def _probe_if_due(self, table: Table) -> bool:
        if not table.probes:
            self._probes_left = 0
            return False
        loss_us = PROBE_ROUNDS * table.probe_loss_us + table.catch_up_us
        floor_us = PROBE_FLOOR / table.rate
        if not self._probes_left and self._choices.book_probe(self._mode, loss_us, floor_us):
            self._probes_left = PROBE_ROUNDS
        return self._probes_left > 0

    def _with_gate(self, gamma: int, table: Table, session: Progress) -> RoundPlan:
        """Let the verifier go on alone where the table says so; a probe to come keeps it from that."""
        if self._probes_left or not table.choice.closed:
            return RoundPlan(gamma)
        run = min(session.remaining, self._choices.solo_run(), table.most_solo)
        return RoundPlan(
            gamma,
            solo_below=table.choice.solo_below,
            max_solo_tokens=run,
            # Where it is hardly ever asked it need not be ready.
            keeps_warm=table.choice.drafts,
            chosen_alone=table.number,
        )


def _every(number: int) -> int:
    return VARY_EVERY if number > FIRST_ROUNDS else VARY_EVERY_AT_FIRST


def _varies(number: int) -> bool:
    """Return whether this is a round that tries another γ."""
    return number % _every(number) == _every(number) // 2 + 1


def _ends_alone(number: int) -> bool:
    """Return whether this is a round that ends with one solo token whatever is chosen."""
    return number % ALONE_EVERY == ALONE_AFTER


def _ending_alone(gamma: int) -> RoundPlan:
    """Return a round that is followed by one solo token."""
    return RoundPlan(gamma, solo_below=ALWAYS_SOLO, max_solo_tokens=1)
