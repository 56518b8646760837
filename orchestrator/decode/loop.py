"""The hot loop: draft, verify, commit, yield. And the rounds it takes: each is drafted while the reader is busy."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import NamedTuple

from orchestrator.decode.lookahead import ExpectedRounds, Planned
from orchestrator.decode.ports import Drafter, Verifier
from orchestrator.decode.request import Delta
from orchestrator.decode.session import Session
from orchestrator.policy.gates import Policy
from specgate.types import NO_PROPOSAL, DraftRequest, Proposal, RoundPlan, Verdict


async def decode(session: Session, drafter: Drafter, verifier: Verifier, policy: Policy) -> AsyncGenerator[Delta, None]:
    """Yield what each verdict commits, until the session is finished."""
    async with aclosing(Rounds(session, drafter, verifier, policy)) as rounds:
        while not session.finished:
            plan, proposal = await rounds.next()
            async with aclosing(verifier.verify(session.verify_request(proposal, plan))) as verdicts:
                async for verdict in verdicts:
                    delta = session.commit(proposal, verdict)
                    await rounds.follow(verdict)
                    yield delta
                    if session.finished:
                        break


class _Begun(NamedTuple):
    """A round's plan, and the drafting that goes on behind the reader's back; its result is when it ended, too.

    ``followed`` is what the target has begun with by itself. ``begun_s`` in the seconds of the clock.
    """

    plan: RoundPlan
    drafting: asyncio.Task[tuple[Proposal, float]]
    followed: Planned | None
    begun_s: float


class Rounds:
    """Plans rounds and has them drafted. A plan is made of what is committed; no later one changes it.

    What the drafter announces meanwhile is handed on to the verifier, which goes on with it where it comes true.

    Args:
        clock: seconds.
    """

    def __init__(
        self,
        session: Session,
        drafter: Drafter,
        verifier: Verifier,
        policy: Policy,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._session = session
        self._drafter = drafter
        self._verifier = verifier
        self._policy = policy
        self._clock = clock
        self._begun: _Begun | None = None
        self._drafting: asyncio.Task[tuple[Proposal, float]] | None = None
        self._running = NO_PROPOSAL
        self._expected = ExpectedRounds(session, drafter, policy)
        drafter.listen(self._hand_on)

    async def follow(self, verdict: Verdict) -> None:
        """Tell the drafter what was committed, before anything else happens with it.

        After the last verdict of a round the next one is asked for. Nobody waits for the answer here.
        """
        if self._session.finished:
            return
        if verdict.last:
            self._begin(self._expected.followed(verdict))
            # The request goes out now; after a yield it would wait for the reader. (Of an announced proposal it goes
            # out behind that, when the target is asked.)
            await asyncio.sleep(0)
            return
        self._running = NO_PROPOSAL
        # One that is behind with its last answer hears of it with the next round.
        if self._session.plan.keeps_warm and (self._drafting is None or self._drafting.done()):
            await self._drafter.draft(self._session.keep_warm())

    async def next(self) -> tuple[RoundPlan, Proposal]:
        """Return the next round's plan and its proposal. Raises SpecgateError where the drafter is lost for good."""
        if self._begun is None:
            self._session.restart_round_time()
        plan, drafting, followed, begun_s = self._begun or self._begin()
        wanted_s = self._clock()
        # What the target works on already is not waited for.
        proposal, ready_s = (followed.proposal, begun_s) if followed is not None else await drafting
        self._session.leave_out(ready_s, wanted_s, beside_target=followed is not None)
        self._begun, self._running = None, proposal
        self._hand_on()
        return plan, proposal

    async def aclose(self) -> None:
        """End what is being drafted for nobody."""
        self._begun = None
        if self._drafting is not None:
            self._drafting.cancel()
            await asyncio.gather(self._drafting, return_exceptions=True)

    def _begin(self, followed: Planned | None = None) -> _Begun:
        plan = self._policy.plan(self._session)
        if followed is not None:
            plan = replace(followed.plan, prepare=plan.prepare)
        request = self._session.draft_request(plan)
        self._drafting = asyncio.create_task(self._draft(request, self._drafting))
        self._begun = _Begun(plan, self._drafting, followed, self._clock())
        return self._begun

    async def _draft(
        self, request: DraftRequest | None, before: asyncio.Task[tuple[Proposal, float]] | None
    ) -> tuple[Proposal, float]:
        if before is not None:
            # Of a round that the target went on with nobody has waited for the answer.
            await before
        return NO_PROPOSAL if request is None else await self._drafter.draft(request), self._clock()

    def _hand_on(self) -> None:
        # Not while the reader is away: the target is at most one round ahead of him.
        if self._begun is None and (follow_ups := self._expected.tell(self._running)) is not None:
            self._verifier.expect(follow_ups)
