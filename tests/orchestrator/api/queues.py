"""A request queue over the fake model behind real gRPC services, for the tests of the doors."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from orchestrator.api.grpc.service import GrpcApi
from orchestrator.api.keys.keyring import Keyring
from orchestrator.api.request_queue import RequestQueue
from orchestrator.api.settings.listen import Listen
from orchestrator.api.settings.settings import Defaults, GatewaySettings
from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.services.pool import StaticPool
from orchestrator.services.timeouts import Timeouts
from specgate.types import SessionSpec
from tests.support.fake_services import FakeService, serving
from tests.support.fakes import EOS_TOKEN_ID, VOCAB_SIZE, FakeModel, FakeVerifier, Fault
from tests.support.patience import eventually

PATIENT = Timeouts(connect_s=30.0, connect_drafter_s=30.0, open_s=30.0, draft_floor_s=60.0, verdict_floor_s=60.0)
"""A busy machine adds no faults of its own."""
Hanging = partial(FakeVerifier, faults={2: Fault.HANG})
"""Two verdicts, then none any more."""


@dataclass(slots=True)
class Room:
    """A request queue and the services behind it."""

    request_queue: RequestQueue
    verifier: FakeService
    drafter: FakeService

    async def freed(self) -> None:
        """Return once both services have no session left, and the queue no request."""
        await eventually(lambda: not (self.verifier.num_open or self.drafter.num_open or self.request_queue.num_inside))

    def forget(self) -> None:
        """Let go of the sessions that have been."""
        self.verifier.sessions.clear()
        self.drafter.sessions.clear()


@asynccontextmanager
async def open_room(
    make_verifier: Callable[[SessionSpec], Any] = FakeVerifier,
    tokenizer: TextTokenizer | None = None,
    timeouts: Timeouts = PATIENT,
    context_length: int = 512,
    **limits: Any,
) -> AsyncIterator[Room]:
    """A request queue with ``limits``. The fake model's ids are read by any ``tokenizer`` that has as many."""
    vocab_size = tokenizer.vocab_size if tokenizer else VOCAB_SIZE
    known = {"tokenizer_fingerprint": {}, "vocab_size": vocab_size, "context_length": context_length}
    async with AsyncExitStack() as stack:
        verifier = await stack.enter_async_context(serving("verifier", make_verifier, **known))
        drafter = await stack.enter_async_context(serving("drafter", **known))
        pools = (StaticPool([verifier.endpoint]), StaticPool([drafter.endpoint]))
        orchestrator = await Orchestrator.connect(*pools, tokenizer, timeouts=timeouts)
        await stack.enter_async_context(orchestrator)
        request_queue = RequestQueue(orchestrator, GatewaySettings(**limits), Defaults(), "fake")
        yield Room(request_queue, verifier, drafter)


@asynccontextmanager
async def occupied(room: Room) -> AsyncIterator[None]:
    """A request that runs, and whose answer is not read to its end."""
    async with aclosing(room.request_queue.deltas([GenerationRequest((5, 17, 3), max_tokens=9)])) as deltas:
        await anext(deltas)
        yield


@asynccontextmanager
async def open_api(
    *args: Any, drain_s: float = 0.0, listen: Listen | None = None, keyring: Keyring | None = None, **room: Any
) -> AsyncIterator[tuple[Room, GrpcApi]]:
    """A room that is reached over gRPC."""
    async with open_room(*args, **room) as opened:
        door = GrpcApi(opened.request_queue, listen or Listen(), keyring, drain_s=drain_s)
        await door.start()
        try:
            yield opened, door
        finally:
            await door.drain()


def dying_after(num_verdicts: int, num_sessions: int = 1) -> Callable[[SessionSpec], FakeVerifier]:
    """A target whose first sessions die after so many verdicts; the ones that take their place die at once."""
    faults = iter([{num_verdicts: Fault.DIE}] * num_sessions)
    return lambda spec: FakeVerifier(spec, faults=next(faults, {0: Fault.DIE}))


def expected(request: GenerationRequest, eos_rate: float = 0.0) -> tuple[int, ...]:
    """What the fake target alone says to ``request``."""
    stop = request.stop_token_ids | (frozenset() if request.ignore_eos else {EOS_TOKEN_ID})
    prompt, length = request.prompt_token_ids, request.max_tokens
    return FakeModel(eos_rate).generate(
        SessionSpec(prompt, request.sampling, 0, request.verification, length, stop_token_ids=stop)
    )
