"""Sessions on drafters for one request: opened on whatever drafter the pool leases, and asked within a deadline."""

import asyncio
from dataclasses import dataclass, replace

from orchestrator.decode.ports import Drafter, DrafterDialer, Pool, TextTooLong
from orchestrator.decode.session import Session
from orchestrator.services.checks import check_proposal
from orchestrator.services.deadlines import DraftDeadline, within
from orchestrator.services.session_lease import SessionLease
from orchestrator.services.timeouts import Timeouts
from specgate.errors import ServiceUnavailable
from specgate.types import NO_PROPOSAL, DraftRequest, Proposal

DRAFT_FACTOR = 10.0


@dataclass(slots=True)
class DrafterSession:
    """An open session on one drafter, which was sent the first ``num_sent`` committed tokens of ``session``."""

    leased: SessionLease[Drafter]
    session: Session
    num_sent: int
    context_length: int
    """The length of the text up to which it can draft, in tokens."""
    deadline: DraftDeadline

    @property
    def drafter(self) -> Drafter:
        return self.leased.session

    @property
    def fits(self) -> bool:
        """Whether the drafter can draft after the committed tokens."""
        return self.session.length < self.context_length

    def caught_up(self, request: DraftRequest) -> DraftRequest:
        """Return ``request`` with all committed tokens that this drafter was not sent; they count as sent now."""
        start, self.num_sent = self.num_sent, self.session.length
        return replace(request, position=start, token_ids=tuple(self.session.committed[start:]))

    async def ask(self, request: DraftRequest) -> Proposal:
        """Return the drafter's proposal, once it is checked.

        Raises:
            TimeoutError: it takes longer than the deadline.
            SpecgateError: the session is lost, or the answer cannot be a proposal.
        """
        if request.gamma == 0:
            if request.token_ids or request.running:
                await within(self.deadline.limit_s(), self.drafter.draft(request))
            return NO_PROPOSAL
        proposal = await self.deadline.wait(self.drafter.draft(request), request)
        check_proposal(self.session.opening_spec, request, proposal)
        return proposal


class DrafterOpener:
    """Opens sessions on the drafters of a pool, until it is ``closed``."""

    def __init__(self, pool: Pool, dialer: DrafterDialer, session: Session, timeouts: Timeouts) -> None:
        self._pool = pool
        self._dialer = dialer
        self._session = session
        self._timeouts = timeouts
        self.closed = False
        """Whether no more sessions are opened: then a lease that is awaited is given back unused."""

    async def open(self, timeout_s: float) -> DrafterSession | None:
        """Return an open session; None: the drafter cannot hold the text, or the request was closed meanwhile.

        Raises:
            ServiceUnavailable: no drafter was free, or open, within ``timeout_s``.
            SpecgateError: what the drafter answered.
        """
        try:
            async with asyncio.timeout(timeout_s):
                lease = await self._pool.lease(self._dialer.cost_us)
        except TimeoutError:
            raise ServiceUnavailable(f"no drafter was free within {timeout_s:g} s") from None
        if self.closed:
            self._pool.release(lease)
            return None
        spec, context_length = self._session.spec, 0

        async def opening() -> Drafter:
            nonlocal context_length
            drafter, context_length = await self._dialer.open_drafter(lease, spec)
            return drafter

        try:
            leased = await SessionLease[Drafter].open(self._pool, lease, opening(), timeout_s, "drafter")
        except TextTooLong:
            return None
        deadline = DraftDeadline(self._timeouts.first_draft_s, self._timeouts.draft_floor_s, DRAFT_FACTOR)
        return DrafterSession(leased, self._session, spec.position, context_length, deadline)

    async def open_warm(self) -> DrafterSession | None:
        """Return an open session whose prefill is done, so that the request never waits for one; None: not this time.

        Raises:
            SpecgateError: see ``open``.
        """
        opened = await self.open(self._timeouts.open_s)
        if opened is None:
            return None
        try:
            # A draft that nobody uses, whatever its tokens: its answer shows that the prefill before it is done.
            await opened.ask(opened.caught_up(DraftRequest(self._session.round, opened.num_sent, (), gamma=1)))
        except BaseException as error:
            await opened.leased.give_back(failed=isinstance(error, Exception))
            if not isinstance(error, Exception):
                raise
            return None
        return opened
