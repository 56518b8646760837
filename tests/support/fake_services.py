"""Both services over gRPC with the fake model behind them, in this process."""

import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import MappingProxyType
from typing import Any

from specgate.errors import SpecgateError
from specgate.rpc.convert import (
    draft_response_to_pb,
    draft_round_from_pb,
    prompt_logprobs_to_pb,
    verdict_to_pb,
    verify_round_from_pb,
)
from specgate.rpc.convert_ahead import announcement_to_pb, follow_ups_from_pb
from specgate.rpc.convert_session import model_info_to_pb, session_spec_from_pb
from specgate.rpc.server import Server
from specgate.rpc.server_options import ServerOptions
from specgate.rpc.tls import TlsFiles
from specgate.service.stream import open_spec
from specgate.types import Announcement, ModelInfo, Proposal, SessionSpec
from specgate.v1 import drafter_service_pb2 as drafting_pb
from specgate.v1 import drafter_service_pb2_grpc, verifier_service_pb2_grpc
from specgate.v1 import verifier_service_pb2 as verifying_pb
from tests.support.fakes import EOS_TOKEN_ID, VOCAB_SIZE, FakeDrafter, FakeVerifier


def model_info(role: str, **changes: Any) -> ModelInfo:
    values: dict[str, Any] = {
        "model": f"fake-{role}", "role": role, "architecture": "Fake", "dtype": "float32", "device": "cpu",
        "context_length": 512, "vocab_size": VOCAB_SIZE, "num_parameters": 1, "eos_token_ids": (EOS_TOKEN_ID,),
        "tokenizer_fingerprint": MappingProxyType({"vocabulary": "same"}), "max_sessions": 8, "kv_tokens": 4096,
        "proto_version": "specgate.v1", "boot_id": "1",
    }  # fmt: skip
    return ModelInfo(**{**values, **changes})


class FakeService:
    """One service: ``sessions`` are all that were opened, ``num_open`` how many still are."""

    def __init__(self, role: str, make: Callable[[SessionSpec], Any], tls: TlsFiles | None = None, **info: Any) -> None:
        self.role = role
        self.make = make
        self.tls = tls
        self.info = model_info(role, **info)
        self.sessions: list[Any] = []
        self.num_open = 0
        self.refusal: SpecgateError | None = None
        self.answer: Callable[[Any], Any] = lambda response: response
        self.num_answers = 1
        self.announcements: Callable[[Any, Proposal], Iterable[Announcement]] = lambda drafter, last: ()
        self.endpoint = ""
        self.server: Server

    async def GetModelInfo(self, request: Any, context: Any) -> Any:
        return model_info_to_pb(self.info)

    async def start(self, port: int = 0) -> None:
        name = f"specgate.v1.{self.role.capitalize()}Service"
        self.server = Server(name, ServerOptions(port=port, tls=self.tls, drain_s=0.0))
        await self.server.start()
        self.endpoint = self.server.endpoint
        handlers: Any = self.server.handlers
        if self.role == "drafter":
            drafter_service_pb2_grpc.add_DrafterServiceServicer_to_server(self, handlers)
        else:
            verifier_service_pb2_grpc.add_VerifierServiceServicer_to_server(self, handlers)
        await self.server.set_ready(lambda: 0.0)

    async def stop(self) -> None:
        await self.server.drain()

    async def restart(self) -> None:
        await self.start(int(self.endpoint.rpartition(":")[2]))

    @asynccontextmanager
    async def _opened(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        # A client may leave before it has said anything.
        spec = await open_spec(requests)
        if self.refusal is not None:
            raise self.refusal
        self.sessions.append(self.make(session_spec_from_pb(spec)))
        self.num_open += 1
        try:
            yield self.sessions[-1]
        finally:
            self.num_open -= 1

    async def Draft(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async with self._opened(requests) as drafter:
            yield drafting_pb.DraftResponse(opened=True)
            last = Proposal()
            async for message in requests:
                request = draft_round_from_pb(message.round, last.draft_token_ids)
                last = await drafter.draft(request)
                for _ in range(self.num_answers if request.gamma else 0):
                    yield self.answer(draft_response_to_pb(request.round, last))
                for announcement in self.announcements(drafter, last):
                    yield announcement_to_pb(announcement)

    async def Verify(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async with self._opened(requests) as verifier:
            yield verifying_pb.VerifyResponse(opened=True)
            for told in getattr(verifier, "prompt_logprobs", ()):
                yield prompt_logprobs_to_pb(told)
            async for message in requests:
                if message.HasField("follow_ups"):
                    verifier.expect(follow_ups_from_pb(message.follow_ups))
                    continue
                following = verify_round_from_pb(message.round)
                while following is not None:
                    async for verdict in verifier.verify(following):
                        yield self.answer(verdict_to_pb(verdict))
                    following = verifier.followed


@asynccontextmanager
async def serving(
    role: str,
    make: Callable[[SessionSpec], Any] | None = None,
    tls: TlsFiles | None = None,
    *,
    port: int = 0,
    **info: Any,
) -> AsyncIterator[FakeService]:
    """A service of ``role``, on a free port unless one is given; ``info`` changes what it says of itself."""
    service = FakeService(role, make or (FakeDrafter if role == "drafter" else FakeVerifier), tls, **info)
    await service.start(port)
    try:
        yield service
    finally:
        await service.stop()


@contextmanager
def silent() -> Iterator[str]:
    """The endpoint of what a stopped process looks like: connections are accepted, nothing is ever answered."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def free_port() -> int:
    """Return a port of loopback that nobody has at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def unused_endpoint() -> str:
    """An endpoint that nobody listens on."""
    return f"127.0.0.1:{free_port()}"
