"""One channel to one gRPC door."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any, Self

import grpc

from specgate.client.convert import answer_from_pb, delta_from_pb, request_to_pb
from specgate.client.values import Answer, Delta, Params, Prompt
from specgate.errors import InternalError, InvalidArgument, ServiceUnavailable
from specgate.rpc.channel import open_channel
from specgate.rpc.status import from_rpc_error
from specgate.rpc.tls import ClientTlsFiles
from specgate.v1 import generation_service_pb2 as pb2
from specgate.v1.generation_service_pb2_grpc import GenerationServiceStub


class Client:
    """Asks a running system for text. Many requests may run at a time, on one event loop; use it as ``async with``.

    Args:
        endpoint: HOST:PORT of the gRPC door.
        tls: the files to reach it with; None is plain text, ``ClientTlsFiles()`` trusts the system's roots.
        key: of `orchestrator keys`, where the system asks for one. In plain text whoever listens reads it.

    Raises:
        InvalidArgument: ``endpoint`` is not HOST:PORT, a file cannot be used, or ``key`` is none.
    """

    def __init__(self, endpoint: str, tls: ClientTlsFiles | None = None, key: str | None = None) -> None:
        if key is not None and not (key.isascii() and key.isprintable()):
            raise InvalidArgument("key", "has characters that no key has; ASCII is all of it, in one line")
        self.endpoint = endpoint
        self._metadata = () if key is None else (("authorization", f"Bearer {key}"),)
        self._channel = open_channel(endpoint, tls)
        self._stub: Any = GenerationServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel what still runs, and close the channel. Safe to call twice."""
        await self._channel.close()

    async def stream(
        self, prompt: Prompt, params: Params = Params(), *, timeout_s: float | None = None
    ) -> AsyncGenerator[Delta, None]:
        """Yield the deltas of an answer as they are committed; of several answers in any order, see ``Delta.index``.

        Leaving the loop early cancels the call, and the server frees its sessions. Whoever keeps the generator in a
        variable closes it: ``async with aclosing(client.stream(...)) as deltas``.

        Args:
            timeout_s: for all of it, from now on; None is no limit.

        Raises:
            InvalidArgument: the request is none; ``field`` names what is wrong with it.
            Unauthenticated, PermissionDenied: the key is missing, unknown or revoked.
            ResourceExhausted: there is no room now; ``retry_after_s`` says when to come back.
            ServiceUnavailable: nobody answers there, or no more, or not within ``timeout_s``.
            SpecgateError: what else the server answered.
        """
        request = request_to_pb(pb2.GenerateStreamRequest, prompt, params)
        with self._answers():
            call = self._stub.GenerateStream(request, timeout=timeout_s, metadata=self._metadata)
            try:
                async for response in call:
                    yield delta_from_pb(response)
            finally:
                call.cancel()

    async def generate(self, prompt: Prompt, params: Params = Params(), *, timeout_s: float | None = None) -> Answer:
        """Return a whole answer. Arguments and errors are those of ``stream``."""
        request = request_to_pb(pb2.GenerateRequest, prompt, params)
        with self._answers():
            return answer_from_pb(await self._stub.Generate(request, timeout=timeout_s, metadata=self._metadata))

    @contextmanager
    def _answers(self) -> Iterator[None]:
        """Within it errors are those of ``specgate.errors``; what is no answer of GenerationService is one, too."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        except grpc.aio.UsageError:
            raise ServiceUnavailable(f"the client of {self.endpoint} was closed") from None
        except asyncio.CancelledError:
            # Where nobody cancelled the task it is the call that was, by ``close``.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise ServiceUnavailable(f"the client of {self.endpoint} was closed") from None
        except InvalidArgument as error:
            raise InternalError(f"{self.endpoint} answered nonsense: {error}") from None
