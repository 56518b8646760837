"""gRPC adapters of the ports: one bidirectional stream is one session."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import grpc

from orchestrator.decode.lookahead import MAX_ANNOUNCEMENTS_PER_ROUND, Announcer
from orchestrator.decode.ports import Lease
from orchestrator.services.streams import ChannelCache, SessionStream, answered_by, check_round
from specgate.errors import InternalError, InvalidArgument, SpecgateError
from specgate.rpc.convert import (
    draft_response_from_pb,
    draft_round_to_pb,
    prompt_logprobs_from_pb,
    verdict_from_pb,
    verify_round_to_pb,
)
from specgate.rpc.convert_ahead import (
    announcement_from_pb,
    follow_ups_to_pb,
    running_draft_from_pb,
    running_draft_to_pb,
)
from specgate.rpc.convert_session import model_info_from_pb, session_spec_to_pb
from specgate.rpc.request_id import outgoing
from specgate.rpc.status import from_rpc_error
from specgate.types import (
    ALWAYS_SOLO,
    NO_PROPOSAL,
    DraftRequest,
    FollowUps,
    ModelInfo,
    Proposal,
    RunningDraft,
    SessionSpec,
    TokenLogprobs,
    Verdict,
    VerifyRequest,
    common_prefix_length,
)
from specgate.v1 import drafter_service_pb2, types_pb2, verifier_service_pb2
from specgate.v1.drafter_service_pb2_grpc import DrafterServiceStub
from specgate.v1.verifier_service_pb2_grpc import VerifierServiceStub

_STUBS: Mapping[str, Callable[[grpc.aio.Channel], Any]] = {
    "drafter": DrafterServiceStub,
    "verifier": VerifierServiceStub,
}


WrapCall = Callable[[Any], Any]
"""Takes a session's gRPC call, and returns a replacement with the same methods ``write``, ``read`` and ``cancel``."""


class GrpcDialer:
    """Opens sessions over shared channels. An opening fails if it is not answered within ``open_timeout_s``."""

    def __init__(self, channels: ChannelCache, open_timeout_s: float, wrap_call: WrapCall | None = None) -> None:
        self._channels = channels
        self._open_timeout_s = open_timeout_s
        self._wrap_call = wrap_call

    async def open_drafter(self, lease: Lease, spec: SessionSpec) -> "GrpcDrafter":
        """See ``ports.DrafterDialer``."""
        opening = drafter_service_pb2.DraftRequest(open=_spec_to_pb(spec, lease))
        call = self._stub(lease, "drafter").Draft(metadata=outgoing())
        stream, _ = await self._opened(call, opening, f"the drafter at {lease.endpoint}")
        return GrpcDrafter(stream, rejects=spec.rejects)

    async def open_verifier(self, lease: Lease, spec: SessionSpec) -> "GrpcVerifier":
        """See ``ports.VerifierDialer``."""
        opening = verifier_service_pb2.VerifyRequest(open=_spec_to_pb(spec, lease))
        call = self._stub(lease, "verifier").Verify(metadata=outgoing())
        stream, answer = await self._opened(call, opening, f"the verifier at {lease.endpoint}")
        return GrpcVerifier(stream, spec.num_prompt_logprobs, runs=answer.running_drafts)

    async def model_info(self, lease: Lease, role: str, timeout_s: float | None = None) -> ModelInfo:
        """Return the service's model information; ``role`` is "drafter" or "verifier".

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

    async def _opened(self, call: Any, opening: Any, peer: str) -> tuple[SessionStream, Any]:
        stream = SessionStream(self._wrap_call(call) if self._wrap_call else call, peer)
        answer = await stream.open(opening, self._open_timeout_s, type(opening)(keep_alive=types_pb2.KeepAlive()))
        return stream, answer


def _spec_to_pb(spec: SessionSpec, lease: Lease) -> types_pb2.SessionSpec:
    return session_spec_to_pb(replace(spec, lease_token=lease.token))


class GrpcDrafter(Announcer):
    """A session on a drafter. It reads its stream all the time, so that announcements are known when needed."""

    def __init__(self, stream: SessionStream, *, rejects: bool = False) -> None:
        super().__init__(rejects=rejects)
        self._stream = stream
        self._proposed: tuple[int, ...] = ()
        self._num_unannounced = 0
        self._runs = False
        """Whether the last round asked for a running draft."""
        self._answers: asyncio.Queue[drafter_service_pb2.DraftResponse | Exception] = asyncio.Queue()
        self._lost: Exception | None = None
        self._listening = asyncio.create_task(self._listen())

    async def draft(self, request: DraftRequest) -> Proposal:
        """See ``ports.Drafter``."""
        if self._lost is not None:
            raise self._lost
        round_pb = draft_round_to_pb(request, common_prefix_length(self._proposed, request.token_ids))
        self._proposed, self._runs = (), request.running > 0
        self._num_unannounced += MAX_ANNOUNCEMENTS_PER_ROUND
        self.commit(request)
        try:
            await self._stream.write(drafter_service_pb2.DraftRequest(round=round_pb))
            if request.gamma == 0:
                return NO_PROPOSAL
            answer = await self._answers.get()
        except asyncio.CancelledError:
            # The late answer would be taken for the next round's.
            self._stream.close()
            raise
        if isinstance(answer, Exception):
            raise answer
        with answered_by(self._stream.peer):
            check_round(answer.round, request.round)
            proposal = draft_response_from_pb(answer, request.gamma)
        self._proposed = proposal.draft_token_ids
        return proposal

    async def close(self) -> None:
        """See ``ports.Drafter``."""
        self._stream.close()
        await asyncio.wait((self._listening,))

    async def _listen(self) -> None:
        try:
            while True:
                self._read(await self._stream.read())
        except Exception as error:
            # This round and all later ones fail with the first error.
            self._lost = error
            self._stream.close()
            self._answers.put_nowait(error)

    def _read(self, message: drafter_service_pb2.DraftResponse) -> None:
        if message.HasField("running"):
            if not self._runs:
                # It belongs to rounds that are over.
                return
            with answered_by(self._stream.peer):
                self.add(running_draft_from_pb(message.running))
            return
        if not message.HasField("announced"):
            if not self._answers.empty():
                raise InternalError(f"{self._stream.peer} answers more than it was asked")
            self._answers.put_nowait(message)
            return
        self._num_unannounced -= 1
        if self._num_unannounced < 0:
            raise InternalError(f"{self._stream.peer} announces more than {MAX_ANNOUNCEMENTS_PER_ROUND} times a round")
        with answered_by(self._stream.peer):
            announcement = announcement_from_pb(message.announced)
        self.add(announcement)


class GrpcVerifier:
    """A session on a verifier.

    Args:
        num_prompt_logprobs: that it sends before its first verdict; here they are part of that verdict.
        runs: whether it takes running drafts; one of release 0.1.0 decodes alone instead.
    """

    def __init__(self, stream: SessionStream, num_prompt_logprobs: int = 0, *, runs: bool = True) -> None:
        self._stream = stream
        self._runs = runs
        self._num_prompt_logprobs = num_prompt_logprobs
        self._goes_on = False
        """The verifier has begun the next round by itself."""
        self._expecting: asyncio.Task[None] | None = None
        self._running: RunningDraft | None = None
        """Still to be sent."""

    async def verify(self, request: VerifyRequest) -> AsyncGenerator[Verdict, None]:
        """See ``ports.Verifier``."""
        if request.running_gamma and not self._runs:
            request = replace(request, solo_below=ALWAYS_SOLO, running_gamma=0)
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
        # While the previous follow-ups are still being written, these would be too late.
        if self._expecting is None or self._expecting.done():
            message = verifier_service_pb2.VerifyRequest(follow_ups=follow_ups_to_pb(follow_ups))
            self._expecting = asyncio.create_task(self._send(message))

    def run_on(self, draft: RunningDraft) -> None:
        """See ``ports.Verifier``. While one is still being written, only the last one after it is sent."""
        self._running = draft if self._runs else None
        if self._expecting is None or self._expecting.done():
            self._expecting = asyncio.create_task(self._send(None))

    async def _send(self, message: verifier_service_pb2.VerifyRequest | None) -> None:
        """Send a message, and what runs by then."""
        # The next read reports what is wrong with the stream.
        with suppress(SpecgateError):
            if message is not None:
                await self._stream.write(message)
            while (draft := self._running) is not None:
                self._running = None
                pb = running_draft_to_pb(draft._replace(draft_confidences=()))
                await self._stream.write(verifier_service_pb2.VerifyRequest(running_draft=pb))

    async def close(self) -> None:
        """See ``ports.Verifier``."""
        self._stream.close()
        if self._expecting is not None:
            await asyncio.wait((self._expecting,))
