"""Channels, and bidirectional calls whose failures are raised as SpecgateErrors."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import grpc

from specgate.errors import InternalError, InvalidArgument, ServiceUnavailable, SpecgateError
from specgate.rpc.channel import open_channel
from specgate.rpc.status import from_rpc_error
from specgate.rpc.tls import ClientTlsFiles, channel_credentials

_log = logging.getLogger(__name__)

KEEP_ALIVE_SHARE = 1 / 3
"""A keep_alive is due after this share of the silence that a service allows: two of them may be late."""
RETIRED_S = 86_400.0
"""How long sessions may go on over a connection with replaced TLS files."""


class ChannelCache:
    """One channel an endpoint, shared by all sessions on it."""

    def __init__(self, tls: ClientTlsFiles | None = None) -> None:
        self._tls = tls
        self._stamp = tls.stamp() if tls is not None else None
        self._credentials: grpc.ChannelCredentials | None = None
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._retired: dict[asyncio.Task[None], grpc.aio.Channel] = {}

    def get(self, endpoint: str) -> grpc.aio.Channel:
        """Return the channel to ``endpoint``, opened at its first use.

        Raises:
            InvalidArgument: ``endpoint`` is not HOST:PORT, or a TLS file cannot be used at the first call.
        """
        self._renew()
        channel = self._channels.get(endpoint)
        if channel is not None and channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            # It would refuse new calls until its back-off ends, even if the service is back.
            closing = asyncio.ensure_future(self._channels.pop(endpoint).close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            channel = None
        if channel is None:
            channel = self._channels[endpoint] = open_channel(endpoint, self._tls, self._credentials)
        return channel

    def _renew(self) -> None:
        """Use changed TLS files for new sessions; running ones end on their old connection."""
        if self._tls is None:
            return
        if self._credentials is None:
            self._credentials = channel_credentials(self._tls)
        if (stamp := self._tls.stamp()) != self._stamp:
            self._stamp = stamp
            try:
                self._credentials = channel_credentials(self._tls)
            except InvalidArgument as error:
                # The files are half written: the request runs with the old ones.
                _log.error("the certificate towards services stays as it was: %s", error)
                return
            channels, self._channels = self._channels, {}
            for channel in channels.values():
                closing = asyncio.ensure_future(channel.close(RETIRED_S))
                self._retired[closing] = channel
                closing.add_done_callback(lambda closing: self._retired.pop(closing, None))

    async def close(self) -> None:
        """Close all channels, and with them the sessions that still run. Safe to call twice."""
        channels, self._channels = self._channels, {}
        retired, self._retired = self._retired, {}
        for closing in retired:
            closing.cancel()
        open_ones = [*channels.values(), *retired.values()]
        await asyncio.gather(*self._closing, *(channel.close() for channel in open_ones))


class SessionStream:
    """One session's call on ``peer`` (a name for error messages). Messages are protobuf of either service.

    A request may be silent for minutes, because its gate is closed or its reader is slow: then keep_alives show the
    peer that it is still there.
    """

    def __init__(self, call: Any, peer: str) -> None:
        self._call = call
        self.peer = peer
        self._writing = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._wrote_at_s = 0.0
        self._keeping: asyncio.Task[None] | None = None

    async def open(self, opening: Any, timeout_s: float, keep_alive: Any) -> Any:
        """Send ``opening``, wait for its answer and return it. Then send ``keep_alive`` as often as the peer asks for.

        Raises:
            SpecgateError: what the peer answered.
            ServiceUnavailable: it did not answer within ``timeout_s``.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self.write(opening)
                answer = await self.read()
            if not answer.opened:
                raise InternalError(f"{self.peer} did not answer the opening of a session")
            if answer.session_idle_ms:
                interval_s = answer.session_idle_ms / 1000 * KEEP_ALIVE_SHARE
                self._keeping = asyncio.create_task(self._keep_alive(keep_alive, interval_s))
            return answer
        except TimeoutError:
            self.close()
            raise ServiceUnavailable(f"{self.peer} opened no session within {timeout_s:g} s") from None
        except BaseException:
            self.close()
            raise

    async def write(self, message: Any) -> None:
        """Send one message. Raises SpecgateError where the stream has ended."""
        try:
            with self._translated():
                # gRPC takes one at a time.
                async with self._writing:
                    await self._call.write(message)
            self._wrote_at_s = self._loop.time()
        except asyncio.InvalidStateError:
            # The call has ended: reading raises its status, unless that is OK.
            await self.read()
            raise ServiceUnavailable(f"{self.peer} ended the session") from None
        except InternalError:
            # gRPC reports INTERNAL for a write to a stream that breaks at this moment; the stream's status is lost.
            raise ServiceUnavailable(f"{self.peer} broke the session off") from None

    async def read(self) -> Any:
        """Return the next message. Raises SpecgateError where the stream has ended."""
        with self._translated():
            message = await self._call.read()
        if message is grpc.aio.EOF:
            raise ServiceUnavailable(f"{self.peer} ended the session")
        if message is None:
            raise InternalError(f"{self.peer} sent what is not valid protobuf")
        return message

    def close(self) -> None:
        """Cancel the call: the peer frees the session. Safe to call twice."""
        self._call.cancel()
        if self._keeping is not None:
            self._keeping.cancel()

    async def _keep_alive(self, message: Any, interval_s: float) -> None:
        """Send ``message`` whenever nothing was sent for ``interval_s``, until the stream ends."""
        # The next read reports what is wrong with the stream.
        with suppress(SpecgateError):
            while True:
                await asyncio.sleep(self._wrote_at_s + interval_s - self._loop.time())
                if self._loop.time() - self._wrote_at_s >= interval_s:
                    await self.write(message)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None
        except asyncio.CancelledError:
            # gRPC raises this for a call that we closed, too; the task itself is not cancelled then.
            if _is_cancelled():
                raise
            raise ServiceUnavailable("the session was closed on our side") from None


@contextmanager
def answered_by(peer: str) -> Iterator[None]:
    """Turn an InvalidArgument within it into an InternalError of ``peer``, whose answer is at fault."""
    try:
        yield
    except InvalidArgument as error:
        raise InternalError(f"{peer} answered nonsense: {error}") from None


def check_round(answered: int, asked: int) -> None:
    """Raise InvalidArgument unless the answer is that of the round that was asked."""
    if answered != asked:
        raise InvalidArgument("round", f"{answered} was answered, {asked} was asked")


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
