"""The client of one served system, over one gRPC channel."""

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
    """A client of a running system. Many requests may run at a time, on one event loop; use it as ``async with``.

    Args:
        endpoint: HOST:PORT of the gRPC API.
        tls: certificate files; None is plain text, ``ClientTlsFiles()`` trusts the machine's root certificates.
        key: an API key of `orchestrator keys`, if the system requires one. Without TLS it travels in plain text.

    Raises:
        InvalidArgument: ``endpoint`` is not HOST:PORT, a file is unusable, or ``key`` is malformed.
    """

    def __init__(self, endpoint: str, tls: ClientTlsFiles | None = None, key: str | None = None) -> None:
        if key is not None and not (key.isascii() and key.isprintable()):
            raise InvalidArgument("key", "must be one line of printable ASCII characters")
        self.endpoint = endpoint
        self._metadata = () if key is None else (("authorization", f"Bearer {key}"),)
        self._channel = open_channel(endpoint, tls)
        self._stub: Any = GenerationServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel running requests and close the channel. Safe to call twice."""
        await self._channel.close()

    async def stream(
        self, prompt: Prompt, params: Params = Params(), *, timeout_s: float | None = None
    ) -> AsyncGenerator[Delta, None]:
        """Yield the deltas of an answer as they are committed; ``Delta.index`` tells several answers apart.

        Leaving the loop early cancels the call, and the server frees its sessions. A generator in a variable must be
        closed: ``async with aclosing(client.stream(...)) as deltas``.

        Args:
            timeout_s: seconds for the whole answer; None is no limit.

        Raises:
            InvalidArgument: the request is invalid; ``field`` names the wrong field.
            Unauthenticated, PermissionDenied: the key is missing, unknown or revoked.
            ResourceExhausted: the system is full; try again after ``retry_after_s``.
            ServiceUnavailable: the server does not answer, the connection is lost, or ``timeout_s`` has passed.
            SpecgateError: any other error of the server.
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
        """Return the whole answer. Arguments and errors are those of ``stream``."""
        request = request_to_pb(pb2.GenerateRequest, prompt, params)
        with self._answers():
            return answer_from_pb(await self._stub.Generate(request, timeout=timeout_s, metadata=self._metadata))

    @contextmanager
    def _answers(self) -> Iterator[None]:
        """Translate gRPC errors and malformed answers into those of ``specgate.errors``."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        except grpc.aio.UsageError:
            raise ServiceUnavailable(f"the client of {self.endpoint} was closed") from None
        except asyncio.CancelledError:
            # Nobody cancelled the task, so ``close`` cancelled the call.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise ServiceUnavailable(f"the client of {self.endpoint} was closed") from None
        except InvalidArgument as error:
            raise InternalError(f"{self.endpoint} sent an invalid answer: {error}") from None
