"""The gRPC API: ``GenerationService``, by a server of our own in every gateway replica."""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import unquote

import grpc

from orchestrator.api.choices import choices_of
from orchestrator.api.grpc.convert import delta_to_pb, deltas_to_pb, num_choices, request_from_pb
from orchestrator.api.grpc.prompts import encoded_prompt
from orchestrator.api.keys.keyring import ADDRESS, CALLER, Keyring
from orchestrator.api.request_queue import OTHER_BYTES, RequestQueue
from orchestrator.api.settings.listen import Listen
from orchestrator.decode.request import Delta, GenerationRequest
from specgate.errors import SpecgateError
from specgate.rpc.channel import MAX_MESSAGE_BYTES
from specgate.rpc.interceptors import AnyBehaviour, Behaviour, Context, ServiceInterceptor, metadata_of, run_handler
from specgate.rpc.server import Server
from specgate.rpc.server_options import ServerOptions
from specgate.rpc.status import for_client
from specgate.rpc.tls import TlsFiles
from specgate.v1 import generation_service_pb2 as pb
from specgate.v1 import generation_service_pb2_grpc

SERVICE = "specgate.v1.GenerationService"
TOKEN_BYTES = 16
"""Bytes a prompt token: an id takes up to 5, a token of text seldom more than 8. The event loop reads a message at
once, and 2 MiB of the smallest fields take 50 ms."""


class GenerationServicer(generation_service_pb2_grpc.GenerationServiceServicer):
    """Prompts in, deltas out. A call that ends early frees both its sessions."""

    def __init__(self, request_queue: RequestQueue) -> None:
        self._request_queue = request_queue

    async def GenerateStream(self, request: pb.GenerateStreamRequest, context: Any) -> None:
        """Write the deltas as they are committed."""
        requests = await self._read(request, context)
        num_sent, pace = 0, self._request_queue.read_pace()
        async with aclosing(self._request_queue.deltas(requests)) as deltas:
            try:
                async for index, delta in deltas:
                    # gRPC itself would wait for ever for a client that reads nothing.
                    convert = partial(delta_to_pb, delta, index)
                    response = await self._request_queue.beside(convert, delta.size)
                    await pace.write(context.write(response), len(delta.token_ids))
                    num_sent += len(delta.token_ids)
            except grpc.aio.BaseError:
                # The client is gone.
                raise
            except Exception as error:
                raise _after(num_sent, for_client(error)) from None

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> pb.GenerateResponse:
        """Return the whole answer."""
        requests = await self._read(request, context)
        deltas: list[list[Delta]] = [[] for _ in requests]
        async for index, delta in self._request_queue.deltas(requests):
            deltas[index].append(delta.without_records())
        convert = partial(_answer, deltas)
        return await self._request_queue.beside(convert, sum(delta.size for own in deltas for delta in own))

    async def _read(
        self, request: pb.GenerateStreamRequest | pb.GenerateRequest, context: Any
    ) -> list[GenerationRequest]:
        """Check what arrived, cheap things first, and encode the prompt; return a request for each choice."""
        # gRPC runs each call in a task of its own, whose context ends with it.
        ADDRESS.set(_address(context.peer()))
        n = num_choices(request.params)
        self._request_queue.check_room(n)
        generation_request = request_from_pb(request.params, self._request_queue.defaults)
        grammar = await self._request_queue.checked(generation_request.grammar)
        token_ids = await encoded_prompt(request, self._request_queue)
        if not request.params.HasField("max_tokens"):
            max_tokens = self._request_queue.default_max_tokens(len(token_ids))
            generation_request = replace(generation_request, max_tokens=max_tokens)
        return choices_of([replace(generation_request, prompt_token_ids=token_ids, grammar=grammar)], n)


def _address(peer: str) -> str:
    """Return the IP address of a peer as gRPC names it, such as ``ipv4:127.0.0.1:9`` or ``ipv6:%5B::1%5D:9``."""
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")


def _answer(deltas: Sequence[Sequence[Delta]]) -> pb.GenerateResponse:
    first, *others = map(deltas_to_pb, deltas)
    first.others.extend(others)
    return first


def _after(num_sent: int, error: SpecgateError) -> SpecgateError:
    """Return ``error`` with the index of the last token sent in its message."""
    if num_sent:
        error.args = (f"{error}; the last token sent has index {num_sent - 1}",)
    return error


class KeyInterceptor(ServiceInterceptor):
    """Refuses calls of ``service`` that show no good key; others run with ``CALLER`` set.

    Health and reflection need none.
    """

    def __init__(self, service: str, keyring: Keyring) -> None:
        super().__init__(service)
        self._keyring = keyring

    def wrapped(self, behaviour: AnyBehaviour, method: str, call: grpc.HandlerCallDetails) -> Behaviour:
        """Return a behaviour that checks the key before it reads the request."""
        shown = metadata_of(call, "authorization")

        async def run(request: Any, context: Context) -> Any:
            # gRPC runs each call in a task of its own, whose context ends with it.
            CALLER.set(self._keyring.caller_of(shown))
            return await run_handler(behaviour, request, context)

        return run


class GrpcApi:
    """One listening server over a request queue, from ``start`` to ``drain``.

    Args:
        keyring: the keys that calls need; None if they need none.
        reuse_port: share the port with other replicas on this node.
        drain_s: seconds that running calls may go on after a drain began.

    Raises:
        InvalidArgument: ``listen`` is beyond loopback with neither TLS nor consent.
    """

    def __init__(
        self,
        request_queue: RequestQueue,
        listen: Listen,
        keyring: Keyring | None = None,
        *,
        reuse_port: bool = False,
        drain_s: float = 30.0,
    ) -> None:
        checks = [] if keyring is None else [KeyInterceptor(SERVICE, keyring)]
        most = OTHER_BYTES + TOKEN_BYTES * request_queue.target_info.context_length
        options = _options(listen, reuse_port=reuse_port, drain_s=drain_s)
        self._server = Server(SERVICE, replace(options, max_request_bytes=min(most, MAX_MESSAGE_BYTES)), checks)
        servicer = GenerationServicer(request_queue)
        handlers: Any = self._server.handlers
        generation_service_pb2_grpc.add_GenerationServiceServicer_to_server(servicer, handlers)

    @property
    def endpoint(self) -> str:
        """HOST:PORT as bound."""
        return self._server.endpoint

    async def start(self) -> None:
        """Listen and serve.

        Raises:
            InvalidArgument: the port cannot be bound, or a TLS file cannot be used.
        """
        await self._server.start()
        await self._server.set_ready()

    async def drain(self) -> None:
        """Refuse new calls, let running ones end within ``drain_s`` seconds, abort the others, stop listening."""
        await self._server.drain()


def _options(listen: Listen, *, reuse_port: bool, drain_s: float) -> ServerOptions:
    files = listen.tls
    tls = None if files is None else TlsFiles(files.certificate, files.key, files.client_ca)
    return ServerOptions(listen.host, listen.port, tls, listen.insecure, reuse_port=reuse_port, drain_s=drain_s)
