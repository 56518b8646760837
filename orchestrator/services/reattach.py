"""A drafter that is never missed: lost, it is replaced behind the running request, which the target goes on with."""

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass, replace

from orchestrator.decode.ports import Drafter, DrafterDialer, OnAnnouncement, Pool
from orchestrator.decode.session import Session
from orchestrator.services.checks import check_proposal
from orchestrator.services.deadlines import DraftDeadline, within
from orchestrator.services.session_lease import SessionLease
from orchestrator.services.timeouts import Timeouts
from specgate.errors import MISCONFIGURED, ServiceUnavailable, SpecgateError, reason_of
from specgate.types import NO_PROPOSAL, DraftRequest, Proposal, TokenIds

DRAFT_FACTOR = 10.0
FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 2.0
MAX_DOUBLINGS = 10

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _DrafterSession:
    """An open session; ``num_known`` committed tokens have been told to it."""

    leased: SessionLease[Drafter]
    context_length: int
    num_known: int
    deadline: DraftDeadline

    @property
    def drafter(self) -> Drafter:
        return self.leased.session


class NoDrafter:
    """The port's ``Drafter`` where there is none and none will be."""

    available = False
    may_return = False
    context_length = 0
    num_unread = 0

    async def open(self) -> None:
        """Do nothing."""

    def want(self) -> None:
        """See ``gates.DrafterState``: nothing."""

    async def draft(self, request: DraftRequest) -> Proposal:
        """See ``ports.Drafter``: an empty proposal."""
        return NO_PROPOSAL

    def announced(self, request: DraftRequest) -> Proposal | None:
        """See ``ports.Drafter``: nothing."""
        return None

    def expected(self, position: int) -> Collection[TokenIds]:
        """See ``ports.Drafter``: none."""
        return ()

    def listen(self, on_announcement: OnAnnouncement) -> None:
        """See ``ports.Drafter``: nothing will be heard."""

    async def close(self) -> None:
        """See ``ports.Drafter``."""


class ReattachingDrafter:
    """The port's ``Drafter`` over whatever drafter the pool has. Drafting never raises: no drafter is no proposal.

    A proposal is dropped for two reasons only: its drafter hangs, or it cannot be one. The first waits ten times as
    long as all tokens that were asked for take (half a minute, where they take over three seconds), so whether a
    proposal is used does not depend on the values drawn for it, nor on how many it ends after, as rejection mode needs;
    the second holds for no proposal of an honest drafter.

    What was announced is returned at once. Its round is told and answered behind the request's back, under the same
    deadline as any, and before the next one.
    """

    def __init__(self, pool: Pool, dialer: DrafterDialer, session: Session, timeouts: Timeouts) -> None:
        self._pool = pool
        self._dialer = dialer
        self._session = session
        self._timeouts = timeouts
        self._attached: _DrafterSession | None = None
        self._reattaching: asyncio.Task[None] | None = None
        self._answering: asyncio.Task[Proposal] | None = None
        self._num_attempts = 0
        self._was_opened = False
        self._is_refused = False
        """What the request asks for fits no draft model: that was told, and no attempt mends it."""
        self._on_announcement: OnAnnouncement | None = None
        self._closed = False

    @property
    def available(self) -> bool:
        """See ``gates.DrafterState``."""
        return self._attached is not None

    @property
    def may_return(self) -> bool:
        """See ``gates.DrafterState``."""
        return self._reattaching is not None

    @property
    def context_length(self) -> int:
        """See ``gates.DrafterState``."""
        return self._dialer.context_length if self._attached is None else self._attached.context_length

    @property
    def num_unread(self) -> int:
        """See ``gates.DrafterState``."""
        return self._session.length - (self._attached.num_known if self._attached is not None else 0)

    async def open(self) -> None:
        """Attach for the first time; where that fails, go on trying behind the request.

        Raises:
            InvalidArgument, TokenizerMismatch, UnsupportedArchitecture: the drafter does not fit the request.
        """
        self._was_opened = True
        if not self._fits():
            return
        try:
            attached = await self._attach(self._timeouts.connect_drafter_s)
        except MISCONFIGURED:
            raise
        except Exception as error:
            self._report(error)
            attached = None
        self._attached = attached
        if attached is None:
            self._start_reattaching()
        elif self._closed:
            await self.close()

    def want(self) -> None:
        """See ``gates.DrafterState``. The first attempt is made at once: nothing has failed yet."""
        if not self._was_opened:
            self._was_opened = True
            self._start_reattaching()

    def announced(self, request: DraftRequest) -> Proposal | None:
        """See ``ports.Drafter``. Never raises: what makes no sense is found out when it is asked for."""
        attached = self._attached
        if attached is None or attached.num_known != request.position:
            return None
        try:
            proposal = attached.drafter.announced(request)
            if proposal is not None:
                check_proposal(self._session.opening_spec, request, proposal)
        except SpecgateError:
            return None
        return proposal

    def expected(self, position: int) -> Collection[TokenIds]:
        """See ``ports.Drafter``."""
        return self._attached.drafter.expected(position) if self._attached is not None else ()

    def listen(self, on_announcement: OnAnnouncement) -> None:
        """See ``ports.Drafter``. Whatever drafter is attached later is listened to as well."""
        self._on_announcement = on_announcement
        if self._attached is not None:
            self._attached.drafter.listen(on_announcement)

    async def draft(self, request: DraftRequest) -> Proposal:
        """See ``ports.Drafter``. Never raises."""
        if self._closed:
            return NO_PROPOSAL
        attached = self._attached
        if self._answering is not None:
            if request.gamma == 0 and not self._answering.done():
                # Nobody waits to tell tokens: the next request tells these, too.
                return NO_PROPOSAL
            answering, self._answering = self._answering, None
            await answering
        # One that was attached meanwhile is first asked in the next round, whose number it has not had.
        if attached is None or attached is not self._attached:
            return NO_PROPOSAL
        if not self._fits():
            await self._detach(attached)
            return NO_PROPOSAL
        return await self._draft(attached, self._caught_up(attached, request))

    async def _draft(self, attached: _DrafterSession, request: DraftRequest) -> Proposal:
        try:
            announced = attached.drafter.announced(request)
            if announced is None:
                return await self._ask(attached, request)
            check_proposal(self._session.opening_spec, request, announced)
        except Exception as error:
            return await self._give_up(attached, error)
        self._answering = asyncio.create_task(self._answer(attached, request))
        return announced

    async def _answer(self, attached: _DrafterSession, request: DraftRequest) -> Proposal:
        try:
            return await self._ask(attached, request)
        except Exception as error:
            return await self._give_up(attached, error)

    async def _give_up(self, attached: _DrafterSession, error: Exception) -> Proposal:
        if self._attached is attached:
            # Nothing is awaited before the next attempt is on its way: a round that is planned meanwhile must see it.
            self._attached = None
            self._report(error, f"the drafter at {attached.leased.lease.endpoint}")
            self._start_reattaching()
            await attached.leased.give_back(failed=True)
        return NO_PROPOSAL

    async def close(self) -> None:
        """See ``ports.Drafter``."""
        self._closed = True
        if self._reattaching is not None:
            self._reattaching.cancel()
            await asyncio.wait((self._reattaching,))
        if self._attached is not None:
            await self._detach(self._attached)
        answering, self._answering = self._answering, None
        if answering is not None:
            answering.cancel()
            await asyncio.wait((answering,))

    def _fits(self) -> bool:
        return self._session.length < self.context_length

    async def _ask(self, attached: _DrafterSession, request: DraftRequest) -> Proposal:
        if request.gamma == 0:
            if request.token_ids:
                await within(attached.deadline.limit_s(), attached.drafter.draft(request))
            return NO_PROPOSAL
        proposal = await attached.deadline.wait(attached.drafter.draft(request), request)
        check_proposal(self._session.opening_spec, request, proposal)
        return proposal

    def _caught_up(self, attached: _DrafterSession, request: DraftRequest) -> DraftRequest:
        """Return ``request`` from where this drafter stands, which is not where the one before it stood."""
        known, attached.num_known = attached.num_known, self._session.length
        return replace(request, position=known, token_ids=tuple(self._session.committed[known:]))

    async def _attach(self, timeout_s: float) -> _DrafterSession | None:
        """Return an open session; None: the drafter that was leased holds too little for it, or nobody wants it now."""
        try:
            async with asyncio.timeout(timeout_s):
                lease = await self._pool.lease()
        except TimeoutError:
            raise ServiceUnavailable(f"no drafter was free within {timeout_s:g} s") from None
        if self._closed:
            self._pool.release(lease)
            return None
        spec = self._session.spec
        opening = self._dialer.open_drafter(lease, spec)
        leased = await SessionLease[Drafter].open(self._pool, lease, opening, timeout_s, "drafter")
        if leased is None:
            return None
        if self._on_announcement is not None:
            leased.session.listen(self._on_announcement)
        deadline = DraftDeadline(self._timeouts.first_draft_s, self._timeouts.draft_floor_s, DRAFT_FACTOR)
        context_length = self._dialer.context_length_at(lease)
        return _DrafterSession(leased, context_length, len(spec.committed_token_ids), deadline)

    async def _detach(self, attached: _DrafterSession) -> None:
        """Give the session back, if it is still ours to give."""
        if self._attached is attached:
            self._attached = None
            await attached.leased.give_back()

    def _report(self, error: Exception, drafter: str = "a drafter") -> None:
        self._session.lost("drafter", error)
        _log.warning("the target goes on without %s: %s", drafter, reason_of(error))

    def _start_reattaching(self) -> None:
        if not self._closed:
            self._reattaching = asyncio.create_task(self._reattach())

    async def _reattach(self) -> None:
        try:
            while self._attached is None and self._fits() and not self._is_refused:
                if self._num_attempts or self._session.stats.drafter_failures:
                    await asyncio.sleep(self._backoff_s())
                self._num_attempts += 1
                self._attached = await self._attach_warm()
        finally:
            self._reattaching = None

    def _backoff_s(self) -> float:
        # The attempts of the whole request count: a drafter that dies again and again costs less and less.
        return min(FIRST_BACKOFF_S * 2.0 ** min(self._num_attempts, MAX_DOUBLINGS), MAX_BACKOFF_S)

    async def _attach_warm(self) -> _DrafterSession | None:
        """Return a session whose prefill is done, so that the request never waits for one; None: not this time."""
        try:
            attached = await self._attach(self._timeouts.open_s)
        except MISCONFIGURED as error:
            # After another one was lost it may be this one's own fault: the next one may fit.
            self._is_refused = not self._session.stats.drafter_failures
            self._report(error)
            return None
        except Exception as error:
            if not self._session.stats.drafter_failures:
                # It was first wanted in mid-request: nobody has heard of it yet.
                self._report(error)
            _log.info("no drafter yet: %s", reason_of(error))
            return None
        if attached is None:
            return None
        if self._session.length >= attached.context_length:
            # The text grew past it while it was opened.
            await attached.leased.give_back()
            return None
        try:
            await self._warm_up(attached)
        except BaseException as error:
            await attached.leased.give_back(failed=isinstance(error, Exception))
            if not isinstance(error, Exception):
                raise
            return None
        return attached

    async def _warm_up(self, attached: _DrafterSession) -> None:
        # A draft that nobody uses, whatever its values: its answer says that the prefill before it is done.
        session = self._session
        request = DraftRequest(session.round, attached.num_known, (), gamma=1)
        await self._ask(attached, self._caught_up(attached, request))
