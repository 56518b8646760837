"""One running request."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol, Self

from orchestrator.decode.loop import decode
from orchestrator.decode.request import Delta, GenerationStats
from orchestrator.decode.session import Session
from orchestrator.policy.gates import Policy
from orchestrator.services.failover import FailoverVerifier
from orchestrator.services.reattach import NoDrafter, ReattachingDrafter
from specgate.errors import SpecgateError
from specgate.types import FinishReason


class Presence(Protocol):
    """Who counts the requests that run."""

    def enter(self) -> None: ...
    def leave(self) -> None: ...


class Generation:
    """One running request. Iterate it once to get its deltas.

    Leaving the iteration early, ``aclose()`` and leaving ``async with`` free the sessions on both services.

    Args:
        presence: told when the request begins, and when nothing more will be committed, which may be more than once.
    """

    def __init__(
        self,
        session: Session,
        drafter: ReattachingDrafter | NoDrafter,
        verifier: FailoverVerifier,
        policy: Policy,
        presence: Presence | None = None,
    ) -> None:
        self._session = session
        self._drafter = drafter
        self._verifier = verifier
        self._policy = policy
        self._presence = presence
        self._text: list[str] = []
        self._started = False
        self._closed = False

    @property
    def stats(self) -> GenerationStats:
        """The counts so far; complete when the iteration has ended."""
        return self._session.stats

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the text ended; None until the last delta was yielded."""
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
        """Open both sessions and yield the deltas. A closed generation yields nothing.

        Raises:
            RuntimeError: the generation was iterated before.
            TokenizerMismatch, UnsupportedArchitecture: draft and target do not fit together.
            ResourceExhausted: all verifiers are full.
            ServiceUnavailable: no verifier answers, or the last one was lost; the message has the tokens so far.
            SpecgateError: a verifier failed in a way that every verifier would repeat.
        """
        if self._closed:
            return
        if self._started:
            raise RuntimeError("a generation is iterated once")
        self._started = True
        if self._presence is not None:
            self._presence.enter()
        try:
            await self._open()
            async with aclosing(decode(self._session, self._drafter, self._verifier, self._policy)) as deltas:
                async for delta in deltas:
                    self._text.append(delta.text)
                    yield delta
        except SpecgateError:
            # Closing ends the streams with errors, which are no failures.
            if not self._closed:
                raise
        finally:
            await self.aclose()

    async def _open(self) -> None:
        """Open the verifier's session, and the drafter's at the same time if the first round drafts."""
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
        """Cancel the request and free both sessions. Safe to call twice, and from another task."""
        self._closed = True
        try:
            if self._presence is not None:
                self._presence.leave()
        finally:
            # A failing learner must not keep the sessions open.
            try:
                await self._drafter.close()
            finally:
                await self._verifier.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
