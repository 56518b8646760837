"""Both models in this process, behind the two ports of the decode loop: no service, and no gRPC between them.

No other module here imports the packages of both services. It imports torch, so its users import it only when needed.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from drafter_svc.rounds import DraftRounds, maker_of
from drafter_svc.run_ahead.budget import RunAheadBudget
from orchestrator.decode.lookahead import Announcer
from orchestrator.decode.ports import Lease, SessionCost
from orchestrator.local.local_services import LocalService, OnLoading, OnNotice
from specgate.errors import ServiceUnavailable
from specgate.rpc.convert_session import session_spec_from_pb, session_spec_to_pb
from specgate.service.config import config_of
from specgate.service.model import ServedModel
from specgate.service.replica import load_served
from specgate.service.stream import Stopwatch
from specgate.types import (
    NO_PROPOSAL,
    Ahead,
    Capability,
    DraftRequest,
    FollowUps,
    ModelInfo,
    Proposal,
    RunningDraft,
    SessionSpec,
    Verdict,
    VerifyRequest,
)
from verifier_svc.rounds import PromptLogprobs, VerifyRounds
from verifier_svc.verifier import VerifySession

PLACE = "this process"
CLOSING_S = 1.0
"""How long closing a session waits for the running forward: one that hangs must not hold the caller."""
S = TypeVar("S")


class InProcessPool:
    """The pool of the one service that is loaded here. The service itself refuses what it cannot hold."""

    async def lease(self, cost: SessionCost | None = None) -> Lease:
        """See ``ports.Pool``."""
        return Lease(PLACE)

    def release(self, lease: Lease, *, failed: bool = False) -> None:
        """See ``ports.Pool``: there is no other service."""

    async def close(self) -> None:
        """See ``ports.Pool``."""


class InProcessDialer:
    """Opens sessions on what is loaded here; see ``discovery.Dialer``.

    Args:
        served: by role; a ``ServedModel``, or a ``ServedText`` for a drafter without a model.
    """

    def __init__(self, served: Mapping[str, Any]) -> None:
        self._served = served
        self._maker_of: Any = maker_of(served["drafter"]) if "drafter" in served else None

    async def model_info(self, lease: Lease, role: str, timeout_s: float | None = None) -> ModelInfo:
        """See ``discovery.Dialer``."""
        info: ModelInfo = self._served[role].info()
        if info.role == "drafter" and info.draft_method.has_model:
            # A running draft would take the time of the forward that it should run ahead of.
            info = replace(info, capabilities=info.capabilities - {Capability.RUNNING_DRAFTS})
        return info

    async def open_drafter(self, lease: Lease, spec: SessionSpec) -> "InProcessDrafter":
        """See ``ports.DrafterDialer``."""
        served = self._served["drafter"]
        spec = _as_read(spec, served.context_length)
        session, ending = await _opened(served.open(spec, self._maker_of(spec)))
        # Guesses would delay the verification that they should run ahead of.
        rounds = partial(DraftRounds, served, session, RunAheadBudget(0))
        return InProcessDrafter(rounds, ending, rejects=spec.rejects)

    async def open_verifier(self, lease: Lease, spec: SessionSpec) -> "InProcessVerifier":
        """See ``ports.VerifierDialer``."""
        served = self._served["verifier"]
        session, ending = await _opened(served.open(_as_read(spec, served.context_length), VerifySession))
        return InProcessVerifier(served, session, ending)


@asynccontextmanager
async def loaded(
    services: Sequence[LocalService],
    on_loading: OnLoading,
    on_notice: OnNotice,
) -> AsyncIterator[InProcessDialer]:
    """Load the models of these services, yield what opens sessions on them, and end their engines.

    They load one after the other, because the second one gets only the memory that the first one leaves.

    Raises:
        InvalidArgument, ModelLoadError, UnsupportedArchitecture: a model cannot be served like this, or not at all.
    """
    served: dict[str, Any] = {}
    try:
        for service in services:
            config = config_of(service.role, **service.settings.model_dump())
            tell = partial(on_loading, service.role)
            # When an engine dies its requests fail, and this process goes on.
            load = partial(load_served, service.role, config, exits_on_failure=False)
            served[service.role] = await asyncio.to_thread(load, tell, _naming(service.role, on_notice))
        yield InProcessDialer(served)
    finally:
        for one in served.values():
            one.engine.stop()


def _naming(role: str, on_notice: OnNotice) -> OnNotice:
    return lambda text: on_notice(f"{role}: {text}")


def _as_read(spec: SessionSpec, context_length: int) -> SessionSpec:
    """Return ``spec`` as a service reads and checks it: its numbers are float32s there."""
    return session_spec_from_pb(session_spec_to_pb(spec), context_length)


async def _opened(opening: AbstractAsyncContextManager[S]) -> tuple[S, "_Ending"]:
    stack = AsyncExitStack()
    return await stack.enter_async_context(opening), _Ending(stack)


class _Ending:
    """Ends a session; only the first call has an effect."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.stack = stack
        self._task: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Return when its pages are free, or after ``CLOSING_S``."""
        if self._task is None:
            self._task = asyncio.create_task(self.stack.aclose())
        await asyncio.wait({self._task}, timeout=CLOSING_S)


class InProcessDrafter(Announcer):
    """A session on the drafter of this process.

    Args:
        rounds: makes the rounds of the session, given the function that receives announcements.
        ending: ends the session.
    """

    def __init__(
        self, rounds: Callable[[Callable[[Ahead], None]], DraftRounds], ending: _Ending, *, rejects: bool
    ) -> None:
        super().__init__(rejects=rejects)
        self._loop = asyncio.get_running_loop()
        self._rounds = rounds(self._hear)
        self._ending = ending
        self._last: asyncio.Task[Proposal] = asyncio.create_task(self._warm())
        ending.stack.push_async_callback(self._cancel)

    async def draft(self, request: DraftRequest) -> Proposal:
        """See ``ports.Drafter``."""
        self.commit(request)
        answer = self._last = asyncio.create_task(self._answer(request, self._last))
        if request.gamma == 0:
            return NO_PROPOSAL
        await asyncio.wait({answer})
        if answer.cancelled():
            raise ServiceUnavailable("the session was closed")
        return answer.result()

    async def close(self) -> None:
        """See ``ports.Drafter``."""
        await self._ending.close()

    async def _warm(self) -> Proposal:
        await self._rounds.warm()
        return NO_PROPOSAL

    async def _answer(self, request: DraftRequest, before: asyncio.Task[Proposal]) -> Proposal:
        # When a round fails, all later ones fail like it.
        await before
        stopwatch = Stopwatch()
        stopwatch.start()
        proposal = await self._rounds.draft(request)
        proposal = replace(proposal, draft_us=stopwatch.lap_us())
        self._rounds.prepare()
        return proposal

    def _hear(self, ahead: Ahead) -> None:
        # The engine's thread may call it.
        self._loop.call_soon_threadsafe(self.add, ahead)

    async def _cancel(self) -> None:
        self._last.cancel()
        await asyncio.gather(self._last, return_exceptions=True)


class InProcessVerifier:
    """A session on the verifier of this process."""

    def __init__(self, served: ServedModel, session: VerifySession, ending: _Ending) -> None:
        self._session = session
        self._ending = ending
        self._answers: asyncio.Queue[Verdict | PromptLogprobs | Exception] = asyncio.Queue()
        self._stopwatch = Stopwatch()
        self._goes_on = False
        """The verifier has begun the next round by itself."""
        self._rounds = VerifyRounds(served, session, self._post)
        ending.stack.push_async_callback(self._rounds.cancel)

    async def verify(self, request: VerifyRequest) -> AsyncGenerator[Verdict, None]:
        """See ``ports.Verifier``."""
        if not self._goes_on:
            self._stopwatch.start()
            await self._rounds.begin(request)
        last = self._goes_on = False
        prompt_logprobs: PromptLogprobs = ()
        while not last:
            answer = await self._answers.get()
            if isinstance(answer, Exception):
                raise answer
            if isinstance(answer, tuple):
                prompt_logprobs += answer
                continue
            last, self._goes_on = answer.last, answer.follow_up > 0
            if prompt_logprobs:
                answer, prompt_logprobs = replace(answer, prompt_logprobs=prompt_logprobs), ()
            yield answer

    def expect(self, follow_ups: FollowUps) -> None:
        """See ``ports.Verifier``."""
        self._session.expect(follow_ups)

    def run_on(self, draft: RunningDraft) -> None:
        """See ``ports.Verifier``."""
        self._session.run_on(draft)

    async def close(self) -> None:
        """See ``ports.Verifier``."""
        # A caller that waits for a verdict gets the error.
        self._answers.put_nowait(ServiceUnavailable("the session was closed"))
        await self._ending.close()

    def _post(self, answer: Verdict | PromptLogprobs | Exception) -> None:
        if isinstance(answer, Verdict):
            answer = replace(answer, verify_us=self._stopwatch.lap_us())
        self._answers.put_nowait(answer)
