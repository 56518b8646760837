"""The drafter's side of the decode loop: a round is begun as soon as the one before it is committed."""

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from orchestrator.gate import Policy, RoundPlan
from orchestrator.ports import Drafter
from orchestrator.session import Session
from specgate.types import DraftRequest, Proposal, Verdict

MOST_UNTOLD = 16
"""Tokens that a drafter which need not be ready hears of at a time: few enough for one forward beside others'."""


class _Begun(NamedTuple):
    """A round's plan, and the drafting that goes on behind the reader's back; its result is when it ended, too."""

    plan: RoundPlan
    drafting: asyncio.Task[tuple[Proposal, float]]


class Rounds:
    """Plans rounds and has them drafted. A plan is made of what is committed; no later one changes it.

    Args:
        clock: seconds.
    """

    def __init__(
        self, session: Session, drafter: Drafter, policy: Policy, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._session = session
        self._drafter = drafter
        self._policy = policy
        self._clock = clock
        self._begun: _Begun | None = None

    async def follow(self, verdict: Verdict) -> None:
        """Tell the drafter what was committed, before anything else happens with it.

        After the last verdict of a round the next one is asked for. Nobody waits for the answer here.
        """
        if self._session.finished:
            return
        if verdict.last:
            self._begin()
            # The request goes out now; after a yield it would wait for the reader. (Of an announced proposal it goes
            # out behind that, when the target is asked.)
            await asyncio.sleep(0)
        elif self._session.plan.keeps_warm or self._session.num_untold >= MOST_UNTOLD:
            await self._drafter.draft(self._session.keep_warm())

    async def next(self) -> tuple[RoundPlan, Proposal]:
        """Return the next round's plan and its proposal. Raises SpecgateError where the drafter is lost for good."""
        if self._begun is None:
            self._session.restart_round_time()
        plan, drafting = self._begun or self._begin()
        self._begun, wanted_s = None, self._clock()
        proposal, drafted_s = await drafting
        self._session.leave_out(max(0.0, wanted_s - drafted_s))
        # Once the target has been asked: whatever is done before that, the round waits for.
        asyncio.get_running_loop().call_soon(self._session.report)
        return plan, proposal

    async def aclose(self) -> None:
        """End what is being drafted for nobody."""
        if self._begun is not None:
            self._begun.drafting.cancel()
            await asyncio.gather(self._begun.drafting, return_exceptions=True)
            self._begun = None

    def _begin(self) -> _Begun:
        plan = self._policy.plan(self._session)
        request = self._session.draft_request(plan)
        self._begun = _Begun(plan, asyncio.create_task(self._draft(request)))
        return self._begun

    async def _draft(self, request: DraftRequest) -> tuple[Proposal, float]:
        return await self._drafter.draft(request), self._clock()
