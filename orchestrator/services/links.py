"""gRPC adapters of the ports: one bidirectional stream is one session."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import grpc

from orchestrator.decode.ports import Lease
from orchestrator.services.drafter_link import GrpcDrafter
from orchestrator.services.streams import ChannelCache, SessionStream, answered_by, check_round
from specgate.errors import InvalidArgument, SpecgateError
from specgate.rpc.convert import prompt_logprobs_from_pb, verdict_from_pb, verify_round_to_pb
from specgate.rpc.convert_ahead import follow_ups_to_pb
from specgate.rpc.convert_session import model_info_from_pb, session_spec_to_pb
from specgate.rpc.request_id import outgoing
from specgate.rpc.status import from_rpc_error
from specgate.types import FollowUps, ModelInfo, SessionSpec, TokenLogprobs, Verdict, VerifyRequest
from specgate.v1 import drafter_service_pb2, types_pb2, verifier_service_pb2
from specgate.v1.drafter_service_pb2_grpc import DrafterServiceStub
from specgate.v1.verifier_service_pb2_grpc import VerifierServiceStub

_STUBS: Mapping[str, Callable[[grpc.aio.Channel], Any]] = {
    "drafter": DrafterServiceStub,
    "verifier": VerifierServiceStub,
}


WrapCall = Callable[[Any], Any]
"""Takes a session's gRPC call, and returns what is used in its place: it writes, reads and cancels as that does."""


class GrpcDialer:
    """Opens sessions over shared channels; an open that is not answered within ``open_timeout_s`` has failed."""

    def __init__(self, channels: ChannelCache, open_timeout_s: float, wrap_call: WrapCall | None = None) -> None:
        self._channels = channels
        self._open_timeout_s = open_timeout_s
        self._wrap_call = wrap_call

    async def open_drafter(self, lease: Lease, spec: SessionSpec) -> GrpcDrafter:
        """See ``ports.DrafterDialer``."""
        opening = drafter_service_pb2.DraftRequest(open=_spec_to_pb(spec, lease))
        call = self._stub(lease, "drafter").Draft(metadata=outgoing())
        stream = await self._opened(call, opening, f"the drafter at {lease.endpoint}")
        return GrpcDrafter(stream, rejects=spec.rejects)

    async def open_verifier(self, lease: Lease, spec: SessionSpec) -> "GrpcVerifier":
        """See ``ports.VerifierDialer``."""
        opening = verifier_service_pb2.VerifyRequest(open=_spec_to_pb(spec, lease))
        call = self._stub(lease, "verifier").Verify(metadata=outgoing())
        stream = await self._opened(call, opening, f"the verifier at {lease.endpoint}")
        return GrpcVerifier(stream, spec.num_prompt_logprobs)

    async def model_info(self, lease: Lease, role: str, timeout_s: float | None = None) -> ModelInfo:
        """Return what the service says of itself; ``role`` is "drafter" or "verifier".

        Raises:
            InvalidArgument: another kind of service answers there.
            ServiceUnavailable: none answers in ``timeout_s``, by default the time for an opening.
            InternalError: the answer makes no sense.
        """
        ask = self._stub(lease, role).GetModelInfo
        try:
            limit_s = timeout_s or self._open_timeout_s
            pb = await ask(types_pb2.GetModelInfoRequest(), timeout=limit_s, metadata=outgoing())
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise InvalidArgument(role, f"what answers at {lease.endpoint} is not a {role}") from None
            raise from_rpc_error(error) from None
        with answered_by(f"the {role} at {lease.endpoint}"):
            return model_info_from_pb(pb)

    def _stub(self, lease: Lease, role: str) -> Any:
        return _STUBS[role](self._channels.get(lease.endpoint))

    async def _opened(self, call: Any, opening: Any, peer: str) -> SessionStream:
        stream = SessionStream(self._wrap_call(call) if self._wrap_call else call, peer)
        await stream.open(opening, self._open_timeout_s, type(opening)(keep_alive=types_pb2.KeepAlive()))
        return stream


def _spec_to_pb(spec: SessionSpec, lease: Lease) -> types_pb2.SessionSpec:
    return session_spec_to_pb(replace(spec, lease_token=lease.token))


class GrpcVerifier:
    """A session on a verifier.

    Args:
        num_prompt_logprobs: that it tells before its first verdict, which carries them here.
    """

    def __init__(self, stream: SessionStream, num_prompt_logprobs: int = 0) -> None:
        self._stream = stream
        self._num_prompt_logprobs = num_prompt_logprobs
        self._goes_on = False
        """It has begun with the next round by itself."""
        self._expecting: asyncio.Task[None] | None = None

    async def verify(self, request: VerifyRequest) -> AsyncGenerator[Verdict, None]:
        """See ``ports.Verifier``."""
        if not self._goes_on:
            await self._stream.write(verifier_service_pb2.VerifyRequest(round=verify_round_to_pb(request)))
        last = self._goes_on = False
        prompt_logprobs = await self._read_prompt_logprobs()
        while not last:
            answer = await self._stream.read()
            with answered_by(self._stream.peer):
                check_round(answer.round, request.round)
                verdict = verdict_from_pb(answer, len(request.proposal))
            last, self._goes_on = verdict.last, verdict.follow_up > 0
            if prompt_logprobs:
                verdict, prompt_logprobs = replace(verdict, prompt_logprobs=prompt_logprobs), ()
            yield verdict

    async def _read_prompt_logprobs(self) -> tuple[TokenLogprobs, ...]:
        read: list[TokenLogprobs] = []
        while num_left := self._num_prompt_logprobs - len(read):
            answer = await self._stream.read()
            with answered_by(self._stream.peer):
                if not (part := prompt_logprobs_from_pb(answer, num_left)):
                    raise InvalidArgument("prompt_logprobs", f"{num_left} of {self._num_prompt_logprobs} are missing")
            read += part
        self._num_prompt_logprobs = 0
        return tuple(read)

    def expect(self, follow_ups: FollowUps) -> None:
        """See ``ports.Verifier``."""
        # Where even the last ones are still on their way to it, these come too late.
        if self._expecting is None or self._expecting.done():
            self._expecting = asyncio.create_task(self._send(follow_ups))

    async def _send(self, follow_ups: FollowUps) -> None:
        # What is wrong with the stream is met where it is read.
        with suppress(SpecgateError):
            await self._stream.write(verifier_service_pb2.VerifyRequest(follow_ups=follow_ups_to_pb(follow_ups)))

    async def close(self) -> None:
        """See ``ports.Verifier``."""
        self._stream.close()
        if self._expecting is not None:
            await asyncio.wait((self._expecting,))
