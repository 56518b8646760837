"""One running request."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Self

from orchestrator.decode.loop import decode
from orchestrator.decode.request import Delta, GenerationStats
from orchestrator.decode.session import Session
from orchestrator.policy.gates import Policy
from orchestrator.services.failover import FailoverVerifier
from orchestrator.services.reattach import NoDrafter, ReattachingDrafter
from specgate.errors import SpecgateError
from specgate.types import FinishReason


class Generation:
    """One request: iterate it, once, for its deltas.

    Leaving the iteration early, ``aclose()`` and leaving ``async with`` free the sessions on both services.

    Args:
        on_close: called when nothing more will be committed, so that an unfinished session is no load to anybody's
            counts. More than once, it may be.
    """

    def __init__(
        self,
        session: Session,
        drafter: ReattachingDrafter | NoDrafter,
        verifier: FailoverVerifier,
        policy: Policy,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._session = session
        self._drafter = drafter
        self._verifier = verifier
        self._policy = policy
        self._on_close = on_close
        self._text: list[str] = []
        self._started = False
        self._closed = False

    @property
    def stats(self) -> GenerationStats:
        """Counted so far; complete once the iteration has ended."""
        return self._session.stats

    @property
    def finish_reason(self) -> FinishReason | None:
        """None until the last delta was yielded."""
        return self._session.finish_reason

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All tokens emitted so far."""
        return self._session.output_token_ids

    @property
    def text(self) -> str:
        """All text emitted so far."""
        return "".join(self._text)

    async def __aiter__(self) -> AsyncGenerator[Delta, None]:
        """Open both sessions and yield what they decide. Once closed, or iterated to its end, there is no more.

        Raises:
            RuntimeError: it is being iterated already.
            TokenizerMismatch, UnsupportedArchitecture: draft and target do not fit.
            ResourceExhausted: the verifiers are full for now.
            ServiceUnavailable: no verifier is there, or the last one was lost; says after how many tokens.
            SpecgateError: a verifier failed in a way that another one would repeat.
        """
        if self._closed:
            return
        if self._started:
            raise RuntimeError("a generation is iterated once")
        self._started = True
        try:
            await self._open()
            async with aclosing(decode(self._session, self._drafter, self._verifier, self._policy)) as deltas:
                async for delta in deltas:
                    self._text.append(delta.text)
                    yield delta
        except SpecgateError:
            # What our own closing breaks is no failure.
            if not self._closed:
                raise
        finally:
            await self.aclose()

    async def _open(self) -> None:
        """Open both sessions side by side, so that the two prefills overlap; the drafter's if it is asked at first."""
        if self._policy.plan_ahead(self._session) is None:
            return await self._verifier.open()
        drafter_opening = asyncio.create_task(self._drafter.open())
        try:
            await self._verifier.open()
            await drafter_opening
        finally:
            drafter_opening.cancel()
            await asyncio.gather(drafter_opening, return_exceptions=True)

    async def aclose(self) -> None:
        """Cancel and free both sessions. Safe to call twice, and from another task than the one that iterates."""
        self._closed = True
        try:
            self._on_close()
        finally:
            # Whatever learns from requests, what this one holds is given back.
            try:
                await self._drafter.close()
            finally:
                await self._verifier.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
