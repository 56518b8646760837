"""A drafter that a request never waits for: a lost one is replaced in the background, the target goes on alone."""

import asyncio
import logging
from collections.abc import Collection

from orchestrator.decode.lookahead import Announcer
from orchestrator.decode.ports import DrafterDialer, OnAnnouncement, Pool
from orchestrator.decode.session import Session
from orchestrator.services.checks import check_proposal
from orchestrator.services.drafter_opener import DrafterOpener, DrafterSession
from orchestrator.services.timeouts import Timeouts
from specgate.errors import MISCONFIGURED, SpecgateError, reason_of
from specgate.types import NO_PROPOSAL, DraftRequest, Proposal, RunningDraft, TokenIds

ANY_LENGTH = 1 << 31
"""A new session on a drafter is given the end of a text of any length."""
FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 2.0
MAX_DOUBLINGS = 10
"""Far more than reach ``MAX_BACKOFF_S``; without a limit a float would overflow."""

_log = logging.getLogger(__name__)


class NoDrafter(Announcer):
    """The port's ``Drafter`` of a request that never has one: no proposal, and no announcement."""

    available = may_return = False
    context_length = num_unread = 0

    async def open(self) -> None:
        """Do nothing."""

    def want(self) -> None:
        """Do nothing."""

    async def draft(self, request: DraftRequest) -> Proposal:
        """Return an empty proposal."""
        return NO_PROPOSAL

    async def close(self) -> None:
        """Do nothing."""


class ReattachingDrafter:
    """The port's ``Drafter`` over whatever drafter the pool has. Drafting never raises: no drafter is no proposal.

    A proposal is dropped for two reasons only: its drafter hangs, or it cannot be a proposal. A drafter hangs if it
    takes ten times as long as all requested tokens take, or half a minute where they take over three seconds. So
    whether a proposal is used does not depend on the values drawn for it, nor on its length, as rejection mode needs.
    An honest drafter's proposal is always a proposal.

    An announced proposal is returned at once; its round is sent and answered in the background, before the next one.
    """

    def __init__(self, pool: Pool, dialer: DrafterDialer, session: Session, timeouts: Timeouts) -> None:
        self._opener = DrafterOpener(pool, dialer, session, timeouts)
        self._session = session
        self._connect_s = timeouts.connect_drafter_s
        self._attached: DrafterSession | None = None
        self._reattaching: asyncio.Task[None] | None = None
        self._answering: asyncio.Task[Proposal] | None = None
        self._num_attempts = 0
        self._was_opened = False
        self._is_refused = False
        """No drafter takes the request: this was reported, and another attempt changes nothing."""
        self._on_announcement: OnAnnouncement = lambda: None

    @property
    def available(self) -> bool:
        """See ``gates.DrafterState``."""
        return self._attached is not None and self._attached.fits

    @property
    def may_return(self) -> bool:
        """See ``gates.DrafterState``."""
        return self._reattaching is not None

    @property
    def context_length(self) -> int:
        """See ``gates.DrafterState``."""
        return ANY_LENGTH if self._attached is None else self._attached.context_length

    @property
    def num_unread(self) -> int:
        """See ``gates.DrafterState``."""
        return self._session.length - (self._attached.num_sent if self._attached is not None else 0)

    async def open(self) -> None:
        """Attach for the first time; if that fails, go on trying in the background.

        Raises:
            InvalidArgument, TokenizerMismatch, UnsupportedArchitecture: the drafter does not fit the request.
        """
        self._was_opened = True
        attached = None
        try:
            attached = await self._opener.open(self._connect_s)
        except MISCONFIGURED:
            raise
        except Exception as error:
            self._report(error)
        if attached is None:
            self._start_reattaching()
            return
        self._use(attached)
        if self._opener.closed:
            await self.close()

    def want(self) -> None:
        """See ``gates.DrafterState``. The first attempt is made at once: nothing has failed yet."""
        is_full = self._attached is not None and not self._attached.fits
        if self._reattaching is None and (is_full or not self._was_opened):
            self._was_opened, self._num_attempts = True, 0
            self._start_reattaching()

    def announced(self, request: DraftRequest) -> Proposal | None:
        """See ``ports.Drafter``. Never raises: a proposal that cannot be one is reported when it is requested."""
        attached = self._attached
        if attached is None or attached.num_sent != request.position:
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

    @property
    def running(self) -> RunningDraft | None:
        """See ``ports.Drafter``. None if the verifier would refuse its tokens."""
        draft = self._attached.drafter.running if self._attached is not None else None
        vocab_size = self._session.opening_spec.vocab_size
        return draft if draft is not None and max(draft.draft_token_ids) < vocab_size else None

    def listen(self, on_announcement: OnAnnouncement) -> None:
        """See ``ports.Drafter``. It holds for drafters that are attached later, too."""
        self._on_announcement = on_announcement
        if self._attached is not None:
            self._attached.drafter.listen(on_announcement)

    async def draft(self, request: DraftRequest) -> Proposal:
        """See ``ports.Drafter``. Never raises."""
        if self._opener.closed:
            return NO_PROPOSAL
        attached = self._attached
        if self._answering is not None:
            if request.gamma == 0 and not self._answering.done():
                # Committed tokens alone are not worth the wait: the next request sends them, too.
                return NO_PROPOSAL
            answering, self._answering = self._answering, None
            await answering
        # A drafter that was attached meanwhile is first asked in the next round, whose number it has not seen.
        if attached is None or attached is not self._attached or not attached.fits:
            return NO_PROPOSAL
        return await self._draft(attached, attached.caught_up(request))

    async def _draft(self, attached: DrafterSession, request: DraftRequest) -> Proposal:
        try:
            announced = attached.drafter.announced(request)
            if announced is None:
                return await attached.ask(request)
            check_proposal(self._session.opening_spec, request, announced)
        except Exception as error:
            return await self._give_up(attached, error)
        self._answering = asyncio.create_task(self._answer(attached, request))
        return announced

    async def _answer(self, attached: DrafterSession, request: DraftRequest) -> Proposal:
        try:
            return await attached.ask(request)
        except Exception as error:
            return await self._give_up(attached, error)

    async def _give_up(self, attached: DrafterSession, error: Exception) -> Proposal:
        if self._attached is attached:
            # The next attempt starts before anything is awaited: a round that is planned meanwhile must see it.
            self._attached = None
            self._report(error, f"the drafter at {attached.leased.lease.endpoint}")
            self._start_reattaching()
            await attached.leased.give_back(failed=True)
        return NO_PROPOSAL

    async def close(self) -> None:
        """See ``ports.Drafter``."""
        self._opener.closed = True
        if self._reattaching is not None:
            self._reattaching.cancel()
            await asyncio.wait((self._reattaching,))
        if self._attached is not None:
            await self._detach(self._attached)
        if self._answering is not None:
            self._answering.cancel()
            await asyncio.wait((self._answering,))

    def _use(self, attached: DrafterSession) -> None:
        self._attached = attached
        attached.drafter.listen(self._on_announcement)

    async def _detach(self, attached: DrafterSession) -> None:
        if self._attached is attached:
            self._attached = None
            await attached.leased.give_back()

    def _report(self, error: Exception, drafter: str = "a drafter") -> None:
        self._session.lost("drafter", error)
        _log.warning("the target goes on without %s: %s", drafter, reason_of(error))

    def _start_reattaching(self) -> None:
        if not self._opener.closed:
            self._reattaching = asyncio.create_task(self._reattach())

    async def _reattach(self) -> None:
        try:
            if self._attached is not None:
                await self._detach(self._attached)
            while self._attached is None and not self._is_refused:
                if self._num_attempts or self._session.stats.drafter_failures:
                    # The attempts of the whole request count: a drafter that dies again and again costs less and less.
                    backoff_s = FIRST_BACKOFF_S * 2.0 ** min(self._num_attempts, MAX_DOUBLINGS)
                    await asyncio.sleep(min(backoff_s, MAX_BACKOFF_S))
                self._num_attempts += 1
                await self._attempt()
        finally:
            self._reattaching = None

    async def _attempt(self) -> None:
        is_first_loss = not self._session.stats.drafter_failures
        try:
            attached = await self._opener.open_warm()
        except MISCONFIGURED as error:
            # After a loss it may be this drafter's own fault: the next one may fit.
            self._is_refused = is_first_loss
            self._report(error)
        except Exception as error:
            if is_first_loss:
                # The drafter was first wanted in mid-request: its absence is not reported yet.
                self._report(error)
            _log.info("no drafter yet: %s", reason_of(error))
        else:
            if attached is not None:
                self._use(attached)
