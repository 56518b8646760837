"""What the tests of ``auto`` share: requests, observations, and worlds without noise in which sessions are driven."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from orchestrator.bench.replay.replay import Replay
from orchestrator.bench.replay.trace import RoundTrace, TracedText
from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.auto.learner import Learner
from orchestrator.policy.auto.machine import SimulatedMachine
from orchestrator.policy.auto.observation import Mode, Observation, Observer
from orchestrator.policy.gates import ExpectedPlan, Gate, Policy, RoundPlan
from orchestrator.policy.gates import Progress as Sees

REQUEST = GenerationRequest((1,), gate=Gate.AUTO, gamma=8)
MODE = Mode.of(REQUEST.verification, REQUEST.sampling)
GAMMAS = (3, 1, 5, 2, 8, 4)
SURE, UNSURE = 0.99, 0.1
STRETCH = 24
"""Tokens of a text that are easy, before as many that are hard."""


@dataclass
class Progress:
    confidence: float | None = None
    length: int = 10
    remaining: int = 1000
    fully_accepted: bool = True


def a_round(
    gamma: int = 4,
    accepted: int = 2,
    before: float = 0.9,
    after: float = 0.9,
    forward_us: int = 8000,
    token_us: int = 800,
    batch: int = 1,
    row_us: int = 240,
) -> Observation:
    """A round of one of ``batch`` equal sessions."""
    rows = batch * (gamma + 1)
    forward_us += row_us * (rows - 1)
    return Observation(
        before=before,
        after=after,
        proposed=gamma,
        judged=min(accepted + 1, gamma),
        accepted=accepted,
        draft_us=token_us * gamma,
        verify_us=forward_us,
        round_us=token_us * gamma + forward_us + 400,
        batch_sessions=batch,
        batch_rows=rows,
        forward_us=forward_us,
    )


def solo(before: float = 0.9, after: float = 0.9, forward_us: int = 8000) -> Observation:
    """One streamed token."""
    return Observation(
        before, after, streamed=True, verify_us=forward_us, batch_sessions=1, batch_rows=1, forward_us=forward_us
    )


def taught(
    *seen: Observation, learner: Learner | None = None, request: GenerationRequest = REQUEST, sessions: int = 1
) -> Learner:
    """Return a learner to which so many sessions told ``seen``, in turns."""
    learner = learner or Learner()
    observers = [learner.observer(request) for _ in range(sessions)]
    for observation in seen:
        for observer in observers:
            assert observer is not None
            observer(observation)
    return learner


@dataclass(frozen=True)
class World:
    """A machine, and texts that are easy and hard by turns.

    ``easy`` and ``hard`` are the odds that a draft token stands; with ``hard`` None all is easy. A forward takes 8 ms
    and ``row_us`` for each further row, a draft token ``token_us``. Of the first ``foreseen`` tokens of a proposal
    nobody has to wait. A drafter that was left alone in a solo run reads for ``catch_up_us`` first.
    """

    easy: float
    hard: float | None = None
    sessions: int = 1
    token_us: int = 800
    row_us: int = 240
    foreseen: int = 0
    catch_up_us: int = 0

    def trace(self, num_tokens: int) -> RoundTrace:
        """Return a text of so many tokens for each session."""
        machine = SimulatedMachine(8000, 800, self.row_us, self.token_us, self.token_us / 10, 400)
        return RoundTrace(machine, tuple(self._text(num_tokens, random.Random(seed)) for seed in range(self.sessions)))

    def _text(self, num_tokens: int, dice: random.Random) -> TracedText:
        odds, confidences = (self.easy, self.hard or self.easy), (SURE, SURE if self.hard is None else UNSURE)
        # The target's confidence in a token is what is known before the next one.
        sure = tuple(confidences[place // STRETCH % 2] for place in range(1, num_tokens + 1))
        return TracedText(sure, tuple(dice.random() < odds[place // STRETCH % 2] for place in range(num_tokens)))


@dataclass
class Watched:
    """The policy and the observer of sessions in a world, which note what is planned and told."""

    learner: Learner
    world: World
    plans: list[tuple[float, RoundPlan]] = field(default_factory=list)
    """With the confidence of then."""
    seen: list[Observation] = field(default_factory=list)
    foreseen: list[tuple[RoundPlan, RoundPlan]] = field(default_factory=list)
    """What was said before a verdict was there, and what was planned behind it."""

    @property
    def took_us(self) -> int:
        return sum(seen.round_us or seen.verify_us for seen in self.seen)

    def usual(self, confidence: float = SURE) -> int:
        """Return the γ that is chosen most in the end, at such a confidence."""
        later = self.plans[-len(self.plans) // 6 :]
        chosen = [plan.gamma for at, plan in later if at == confidence and plan.chosen]
        return max(set(chosen), key=chosen.count)

    def gate(self) -> tuple[Policy, Callable[[Observation], None]]:
        """Return those of one session."""
        return _Noting(self, self.learner.policy(REQUEST)), partial(self._tell, self.learner.observer(REQUEST))

    def _tell(self, observer: Observer, seen: Observation) -> None:
        if seen.proposed and seen.before is not None and seen.previous_round is None and self.world.catch_up_us:
            more_us = self.world.catch_up_us
            seen = replace(seen, settled=False, draft_us=seen.draft_us + more_us, round_us=seen.round_us + more_us)
        elif seen.proposed and self.world.foreseen and seen.previous_round is not None:
            prepared = min(self.world.foreseen, seen.proposed)
            less_us = min(prepared * self.world.token_us, seen.draft_us)
            seen = replace(seen, prepared=prepared, draft_us=seen.draft_us - less_us, round_us=seen.round_us - less_us)
        self.seen.append(seen)
        observer(seen)


@dataclass(frozen=True)
class _Noting:
    """A session's policy, whose plans are noted."""

    watched: Watched
    policy: Policy

    def plan(self, session: Sees) -> RoundPlan:
        confidence = 1.0 if session.confidence is None else session.confidence
        ahead, plan = self.plan_ahead(session), self.policy.plan(session)
        if ahead is not None and confidence >= ahead.least_confidence:
            self.watched.foreseen.append((ahead.plan, plan))
        self.watched.plans.append((session.confidence or SURE, plan))
        return plan

    def plan_ahead(self, session: Sees) -> ExpectedPlan | None:
        return self.policy.plan_ahead(Progress(None, session.length, session.remaining, session.fully_accepted))


def drive(world: World, num_tokens: int, learner: Learner | None = None) -> Watched:
    """Let all sessions of a world decode so many tokens each, and return what was planned and told."""
    watched = Watched(learner or Learner(), world)
    Replay(world.trace(num_tokens), world.sessions, watched.gate).run()
    return watched
