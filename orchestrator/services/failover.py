"""A verifier that outlives its process: where one is lost, another one is opened with all emitted tokens."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

from orchestrator.decode.ports import Lease, Pool, Verifier, VerifierDialer
from orchestrator.decode.session import Session
from orchestrator.services.checks import check_follow_up, check_verdict
from orchestrator.services.deadlines import Deadline
from orchestrator.services.session_lease import SessionLease
from orchestrator.services.timeouts import Timeouts
from specgate.errors import (
    MISCONFIGURED,
    InternalError,
    ServiceUnavailable,
    SessionIdle,
    SpecgateError,
    TooManySessions,
    reason_of,
)
from specgate.types import FollowUps, RunningDraft, Verdict, VerifyRequest

VERDICT_FACTOR = 20.0
MAX_FAILURES_WITHOUT_PROGRESS = 3
"""A request that crashes its verifiers crashes only a few of the pool."""
FAILOVER_OPEN_SHARE = 1 / 3
"""One verifier's share of the time for a failover, so that a hung one leaves time for others."""
RETRY_INTERVAL_S = 0.1
NOBODY_FREE = "none was ready, or none had a place free"
"""The cause where the pool itself waited to the end."""

_log = logging.getLogger(__name__)


class FailoverVerifier:
    """The port's ``Verifier`` over the verifiers of a pool. Each starts from what the session has committed.

    Args:
        on_attach: is told the endpoint of each.
    """

    def __init__(
        self,
        pool: Pool,
        dialer: VerifierDialer,
        session: Session,
        timeouts: Timeouts,
        on_attach: Callable[[str], None] | None = None,
    ) -> None:
        self._pool = pool
        self._dialer = dialer
        self._on_attach = on_attach
        self._session = session
        self._timeouts = timeouts
        self._attached: SessionLease[Verifier] | None = None
        self._deadline: Deadline
        """Of the attached verifier."""
        self._leasing: asyncio.Timeout | None = None
        self._lost_by: SpecgateError | None = None
        self._expected: FollowUps | None = None
        self._running: RunningDraft | None = None
        self._num_failures = 0
        self._closed = False

    async def open(self) -> None:
        """Attach for the first time. A verifier that is full or gone is passed over for another, without waiting.

        Raises:
            SpecgateError: what the pool, or the last verifier that was tried, answered. The pool's answer is final: it
                has waited, and another request for a lease would begin at the end of its queue.
            TooManySessions, ServiceUnavailable: the attempts took as long as one wait and one opening may; the message
                says why the last verifier was passed over.
        """
        limit_s = self._timeouts.failover_s + self._timeouts.open_s
        cause: SpecgateError | None = None
        try:
            async with asyncio.timeout(limit_s):
                for _ in range(MAX_FAILURES_WITHOUT_PROGRESS - 1):
                    cause = await self._try_first()
                    if cause is None:
                        return
                await self._open_on(await self._lease(), self._timeouts.open_s)
        except TimeoutError:
            full = isinstance(cause, TooManySessions)
            problem = f"no verifier took the request within {limit_s:g} s: {cause or NOBODY_FREE}"
            raise (TooManySessions if full else ServiceUnavailable)(problem) from cause

    async def _try_first(self) -> SpecgateError | None:
        """Attach to one verifier; return why it was passed over, None where it was not."""
        lease = await self._lease()
        try:
            await self._open_on(lease, self._timeouts.open_s)
        except MISCONFIGURED:
            raise
        except SpecgateError as error:
            self._check_wanted()
            _log.warning("a verifier was passed over: %s", reason_of(error))
            return error
        return None

    async def verify(self, request: VerifyRequest) -> AsyncGenerator[Verdict, None]:
        """See ``ports.Verifier``. A round whose verifier is lost after its first verdict ends there.

        Raises:
            InvalidArgument, TokenizerMismatch, UnsupportedArchitecture: no verifier will take this request.
            ServiceUnavailable: no other verifier was there in time; says how many tokens were emitted.
                Or the request was closed meanwhile.
            SpecgateError: the failure of the last of several verifiers, none of which made progress.
        """
        answered = False
        while not answered:
            attached = self._attached or await self._attach_another()
            try:
                async with aclosing(attached.session.verify(request)) as verdicts:
                    last = False
                    while not last:
                        start_s = time.perf_counter()
                        verdict = await self._next(verdicts)
                        if answered:
                            # Within a run nobody is asked: what is waited for is the target, or its messages.
                            verdict = replace(verdict, waited_us=int((time.perf_counter() - start_s) * 1e6))
                        check_verdict(self._session.opening_spec, request, verdict, first=not answered)
                        check_follow_up(verdict, self._expected, self._session.length)
                        answered, last, self._num_failures = True, verdict.last, 0
                        yield verdict
                    self._check_ending(verdict)
                    return
            except SpecgateError as error:
                await self._lose(attached, error)

    def expect(self, follow_ups: FollowUps) -> None:
        """See ``ports.Verifier``."""
        if self._attached is not None:
            self._expected = follow_ups
            self._attached.session.expect(follow_ups)

    def run_on(self, draft: RunningDraft) -> None:
        """See ``ports.Verifier``."""
        self._running = draft
        if self._attached is not None:
            self._attached.session.run_on(draft)

    async def close(self) -> None:
        """See ``ports.Verifier``."""
        self._closed = True
        if self._leasing is not None and not self._leasing.expired():
            self._leasing.reschedule(asyncio.get_running_loop().time())
        if self._attached is not None:
            await self._detach(self._attached)

    async def _next(self, verdicts: AsyncGenerator[Verdict, None]) -> Verdict:
        limit_s = self._deadline.limit_s
        try:
            verdict = await self._deadline.wait(anext(verdicts, None))
        except TimeoutError:
            raise ServiceUnavailable(f"no verdict came within {limit_s:.3g} s") from None
        if verdict is None:
            raise InternalError("a round ended without its last verdict")
        return verdict

    def _check_ending(self, verdict: Verdict) -> None:
        # The session decides by the same rules. A verifier that ends too soon takes no more rounds.
        if verdict.finish_reason is not None and not self._session.finished:
            raise InternalError("the verifier ended a request that goes on")

    async def _lose(self, attached: SessionLease[Verifier], error: SpecgateError) -> None:
        """Give the verifier up. Raises ``error`` where another verifier would fail, too."""
        misconfigured = isinstance(error, MISCONFIGURED)
        # A verifier that ended a silent session works as it should.
        if not await self._detach(attached, failed=not isinstance(error, (*MISCONFIGURED, SessionIdle))):
            raise error
        self._num_failures += 1
        if misconfigured or self._num_failures >= MAX_FAILURES_WITHOUT_PROGRESS:
            raise error
        self._lost_by = error
        _log.warning("lost the verifier at %s: %s", attached.lease.endpoint, reason_of(error))

    async def _attach_another(self) -> SessionLease[Verifier]:
        timeouts = self._timeouts
        cause: SpecgateError | None = None
        try:
            async with asyncio.timeout(timeouts.failover_s):
                while self._attached is None:
                    try:
                        lease = await self._lease()
                        await self._open_on(lease, min(timeouts.open_s, timeouts.failover_s * FAILOVER_OPEN_SHARE))
                    except MISCONFIGURED:
                        raise
                    except SpecgateError as error:
                        self._check_wanted()
                        cause = error
                        await asyncio.sleep(RETRY_INTERVAL_S)
        except TimeoutError:
            raise self._no_other(cause) from cause
        self._session.lost("verifier", self._lost_by)
        return self._attached

    async def _lease(self) -> Lease:
        self._check_wanted()
        try:
            async with asyncio.timeout(None) as self._leasing:
                lease = await self._pool.lease()
        except TimeoutError:
            # Only ``close`` sets this timeout.
            self._check_wanted()
            raise
        finally:
            self._leasing = None
        if self._closed:
            self._pool.release(lease)
            self._check_wanted()
        return lease

    def _check_wanted(self) -> None:
        # A request may be closed while its task waits for something else.
        if self._closed:
            raise ServiceUnavailable("the request was closed")

    def _no_other(self, cause: SpecgateError | None) -> ServiceUnavailable:
        emitted = self._session.length - self._session.num_prompt_tokens
        lost = f"the verifier was lost after {emitted} emitted tokens ({self._lost_by})"
        why = cause or NOBODY_FREE
        return ServiceUnavailable(f"{lost}, and no other one took over within {self._timeouts.failover_s:g} s: {why}")

    async def _open_on(self, lease: Lease, timeout_s: float) -> None:
        opening = self._dialer.open_verifier(lease, self._session.spec)
        leased = await SessionLease[Verifier].open(self._pool, lease, opening, timeout_s, "verifier")
        timeouts = self._timeouts
        self._deadline = Deadline(timeouts.first_verdict_s, timeouts.verdict_floor_s, VERDICT_FACTOR)
        self._attached = leased
        if self._running is not None:
            leased.session.run_on(self._running)
        if self._closed:
            await self.close()
            self._check_wanted()
        if self._on_attach is not None:
            self._on_attach(lease.endpoint)

    async def _detach(self, attached: SessionLease[Verifier], *, failed: bool = False) -> bool:
        """Give the session back; return False where this was done before."""
        if self._attached is not attached:
            return False
        self._attached = self._expected = None
        await attached.give_back(failed=failed)
        return True
