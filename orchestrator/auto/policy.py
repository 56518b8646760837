"""``auto`` for one session: looks its choice up in the learner's table, and tries now and then what is not chosen.

Lossless by what it may look at: the confidence of the last committed token, the length of the text, and the rounds of
all sessions that are over: how many of their tokens were judged and stood, how long they took, how many sessions
shared their forwards. A pending proposal has no way in: ``plan`` is called before the draft is asked for, and nothing
is observed before a verdict is committed. So neither the values of a proposal nor the time that they took decide
whether it is used; they decide about later rounds alone, whose draft randomness is another. Where proposals are not
random (greedy and ``shared_noise``, in which the text is the same under any plan) it also looks whether the next one is
there already: such a one costs no waiting.

When to try what is not chosen is counted, not drawn: the policy has no randomness that could meet the text's.
"""

from dataclasses import replace
from itertools import cycle
from typing import NamedTuple, Protocol

from orchestrator.auto.choice import Table
from orchestrator.auto.observation import Mode
from orchestrator.auto.survival import BUCKET_EDGES, bucket_of
from orchestrator.gate import Progress, RoundPlan
from orchestrator.ports import Prepared
from specgate.types import ALWAYS_SOLO

CALIBRATION = (3, 1, 5, 2, 8, 4)
"""γ of the first rounds of all, so that costs are known as a function of γ."""
STRETCH_EVERY = 32
"""Rounds between two that draft further than chosen, so that what lies there is known too."""
ALONE_EVERY = 128
"""Rounds between two that end with one solo token whatever is chosen: what the target alone takes must be known."""
PROBE_FLOOR = 0.1
"""In solo tokens: the least that a probe is booked with."""


class Choices(Protocol):
    """What a policy asks of the learner."""

    def table(self, mode: Mode, max_gamma: int, *, looks: bool) -> Table | None: ...

    def may_probe(self, mode: Mode, loss_us: float, floor_us: float) -> bool: ...

    def solo_run(self) -> int: ...

    def looked(self, mode: Mode, bucket: int, gamma: int, length: int, *, whole: bool) -> None: ...

    def prepare_us(self, gamma: int) -> int: ...


class NothingPrepared:
    """The port's ``Prepared`` where nothing ever is: a policy does not look."""

    available = False
    num_prepared = 0


NOTHING_PREPARED = NothingPrepared()


class _Asked(NamedTuple):
    """The γ of a round, and how many tokens could still come when it was planned."""

    gamma: int
    remaining: int


class Auto:
    """``auto``: γ by the target's confidence, 0 included.

    Args:
        max_gamma: the most that the request allows.
        drafter: is asked whether the next proposal is there already.
    """

    def __init__(self, choices: Choices, mode: Mode, max_gamma: int, drafter: Prepared) -> None:
        self._choices = choices
        self._mode = mode
        self._max_gamma = max_gamma
        self._drafter = drafter
        self._looks = mode.can_look and drafter is not NOTHING_PREPARED
        self._last: _Asked | None = None
        self._calibration = cycle(CALIBRATION)
        self._num_rounds = 0
        self._probing = False
        self._num_probes = 0

    def plan(self, session: Progress) -> RoundPlan:
        """Return the next round's plan."""
        table = self._choices.table(self._mode, self._max_gamma, looks=self._looks)
        self._num_rounds += 1
        num_ready = self._drafter.num_prepared if self._looks else 0
        self._learn(session, num_ready)
        plan = self._calibrate() if table is None else self._by(table, session, num_ready)
        due_us = self._choices.prepare_us(plan.gamma) if self._looks else 0
        self._last = _Asked(plan.gamma, session.remaining) if due_us > 0 else None
        if not due_us:
            return plan
        longest = self._max_gamma if table is None else self._stretched(table.longest)
        return replace(plan, prepare=longest, prepare_us=due_us, ready=num_ready)

    def _learn(self, session: Progress, num_ready: int) -> None:
        # What is there after a run of solo tokens is another matter.
        if self._last is None or not self._drafter.available or session.streamed:
            return
        gamma = self._last.gamma
        whole = self._last.remaining - session.remaining > gamma
        self._choices.looked(self._mode, bucket_of(session.confidence), gamma, num_ready, whole=whole)

    def _calibrate(self) -> RoundPlan:
        gamma = min(next(self._calibration), self._max_gamma)
        return _ending_alone(gamma) if self._num_rounds % 2 else RoundPlan(gamma)

    def _by(self, table: Table, session: Progress, num_ready: int) -> RoundPlan:
        bucket = bucket_of(session.confidence)
        gamma = table.with_ready(bucket, num_ready) if num_ready else 0
        if not gamma:
            if bucket < table.num_closed:
                return self._closed(table, bucket, session)
            gamma = table.gammas[bucket]
        if self._num_rounds % STRETCH_EVERY == 0:
            gamma = self._stretched(gamma)
        return self._open(table, gamma, session)

    def _stretched(self, gamma: int) -> int:
        return min(gamma + 1 + gamma // 4, self._max_gamma)

    def _open(self, table: Table, gamma: int, session: Progress) -> RoundPlan:
        if self._num_rounds % ALONE_EVERY == 0:
            return _ending_alone(gamma)
        if table.num_closed and not self._probing:
            self._probing = self._may_probe(table, table.num_closed - 1)
        return self._with_gate(gamma, table, session)

    def _closed(self, table: Table, bucket: int, session: Progress) -> RoundPlan:
        if self._probing or self._may_probe(table, bucket):
            self._probing = False
            self._num_probes += 1
            if self._looks and self._num_probes % 2:
                # Drafts that are asked for may be too dear, and prepared ones not.
                return RoundPlan()
            return self._with_gate(table.probes[bucket], table, session)
        return self._with_gate(0, table, session)

    def _may_probe(self, table: Table, bucket: int) -> bool:
        return self._choices.may_probe(self._mode, table.losses_us[bucket], PROBE_FLOOR / table.rate)

    def _with_gate(self, gamma: int, table: Table, session: Progress) -> RoundPlan:
        """Let the verifier go on alone where the table says so; a probe to come keeps it from that."""
        if self._probing or not table.num_closed:
            return RoundPlan(gamma)
        closed = table.num_closed
        solo_below = BUCKET_EDGES[closed - 1] if closed <= len(BUCKET_EDGES) else ALWAYS_SOLO
        return RoundPlan(gamma, solo_below=solo_below, max_solo_tokens=min(session.remaining, self._choices.solo_run()))


def _ending_alone(gamma: int) -> RoundPlan:
    """Return a round that is followed by one solo token."""
    return RoundPlan(gamma, solo_below=ALWAYS_SOLO, max_solo_tokens=1)
