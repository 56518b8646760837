"""The decode loop: draft, verify, commit, yield. It does what ``tests/support/plain_loop.py`` does, and drafts the next
round while the reader is busy with this one.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import NamedTuple

from orchestrator.decode.lookahead import ExpectedRound, Lookahead
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
                    delta = session.commit(rounds.judged(proposal, verdict), verdict)
                    await rounds.follow(verdict)
                    yield delta
                    if session.finished:
                        break


class _NextRound(NamedTuple):
    """A planned round whose draft is on its way; ``drafting`` returns the draft and when it was there, in seconds.

    ``followed`` is the round that the target has begun by itself, if it has. ``begun_s``: when it was planned.
    """

    plan: RoundPlan
    drafting: asyncio.Task[tuple[Proposal, float]]
    followed: ExpectedRound | None
    begun_s: float


class Rounds:
    """Plans rounds and has them drafted. A plan depends on committed tokens alone; later ones do not change it.

    Announced drafts are sent to the verifier, which verifies one of them by itself if its tokens are committed.

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
        self._next: _NextRound | None = None
        self._drafting: asyncio.Task[tuple[Proposal, float]] | None = None
        self._pending = NO_PROPOSAL
        """The proposal whose verdict is awaited."""
        self._agrees = False
        """What is committed agrees with the running draft, which has tokens after it."""
        self._lookahead = Lookahead(session, drafter, policy)
        drafter.listen(self._send_ahead)

    async def follow(self, verdict: Verdict) -> None:
        """Send the drafter what ``verdict`` committed, and ask for the next draft if it ends the round.

        The answer is not awaited here.
        """
        if self._session.finished:
            return
        if verdict.last:
            self._begin(self._lookahead.followed(verdict))
            # The request is sent now; after a yield it would wait for the reader.
            await asyncio.sleep(0)
            return
        self._pending = NO_PROPOSAL
        # A drafter that still owes an answer gets these tokens with the next round.
        is_idle = self._drafting is None or self._drafting.done()
        if self._session.plan.keeps_warm and is_idle and self._is_due():
            await self._drafter.draft(self._session.keep_warm())

    async def next(self) -> tuple[RoundPlan, Proposal]:
        """Return the next round's plan and its proposal. Raises SpecgateError where the drafter is lost for good."""
        if self._next is None:
            self._session.restart_round_time()
        plan, drafting, followed, begun_s = self._next or self._begin()
        wanted_s = self._clock()
        # A draft that the target verifies already is not awaited.
        proposal, ready_s = (followed.proposal, begun_s) if followed is not None else await drafting
        self._session.exclude_from_timing(ready_s, wanted_s, beside_target=followed is not None)
        self._next, self._pending = None, proposal
        self._send_ahead()
        return plan, proposal

    def judged(self, proposal: Proposal, verdict: Verdict) -> Proposal:
        """Return what ``verdict`` is about: the round's ``proposal``, or what the target took of the running draft."""
        token_ids = verdict.draft_token_ids
        if not token_ids:
            return proposal
        running = self._drafter.running
        return running.proposal(self._session.length, token_ids) if running else Proposal(token_ids)

    async def aclose(self) -> None:
        """Cancel a draft that nobody awaits any more."""
        self._next = None
        if self._drafting is not None:
            self._drafting.cancel()
            await asyncio.gather(self._drafting, return_exceptions=True)

    def _begin(self, followed: ExpectedRound | None = None) -> _NextRound:
        plan = self._policy.plan(self._session)
        if followed is not None:
            plan = replace(followed.plan, prepare=plan.prepare)
        request = self._session.draft_request(plan)
        self._drafting = asyncio.create_task(self._draft(request, self._drafting))
        self._next = _NextRound(plan, self._drafting, followed, self._clock())
        return self._next

    async def _draft(
        self, request: DraftRequest | None, before: asyncio.Task[tuple[Proposal, float]] | None
    ) -> tuple[Proposal, float]:
        if before is not None:
            # The answer of a round that the target began by itself was not awaited.
            await before
        return NO_PROPOSAL if request is None else await self._drafter.draft(request), self._clock()

    def _is_due(self) -> bool:
        """Return whether the drafter is sent now what was committed.

        A running draft is told at once of the token that it did not foresee. While it agrees, it only has to hear in
        time how far it may go on; and until it agrees again, now and then what else was committed.
        """
        plan, agreed = self._session.plan, self._agrees
        if not plan.running_gamma:
            return True
        self._agrees = self._running_goes_on()
        if agreed and not self._agrees:
            return True
        return self._session.num_unsent >= max(plan.ahead // (2 if self._agrees else 16), 1)

    def _running_goes_on(self) -> bool:
        running = self._drafter.running
        return running is not None and bool(running.after(self._session.committed, 1))

    def _send_ahead(self) -> None:
        # Only while a verdict is awaited: so the target is at most one round ahead of the reader.
        if self._next is not None:
            return
        if self._session.plan.running_gamma:
            self._agrees = self._running_goes_on()
            if self._agrees and (running := self._drafter.running):
                self._verifier.run_on(running)
        elif (follow_ups := self._lookahead.follow_ups(self._pending)) is not None:
            self._verifier.expect(follow_ups)
