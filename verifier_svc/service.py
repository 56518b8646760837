"""gRPC VerifierService: convert, call, convert; verdicts go out as the engine makes them."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any

from specgate.rpc.convert import MAX_UINT32, prompt_logprobs_to_pb, verdict_to_pb, verify_round_from_pb
from specgate.rpc.convert_ahead import follow_ups_from_pb
from specgate.rpc.convert_session import model_info_to_pb, session_spec_from_pb
from specgate.rpc.validate import check_token_ids
from specgate.service.model import ServedModel
from specgate.service.silence import Silence, ended_by_silence
from specgate.service.stream import Stopwatch, is_keep_alive, open_spec, round_of
from specgate.types import FollowUps, Verdict
from specgate.v1 import types_pb2, verifier_service_pb2_grpc
from specgate.v1 import verifier_service_pb2 as pb
from verifier_svc.rounds import PromptLogprobs, VerifyRounds
from verifier_svc.verifier import VerifySession

Outbox = asyncio.Queue[Verdict | PromptLogprobs | BaseException | None]
"""What the prompt's tokens are told, then verdicts, in order; an exception or None ends the stream."""


class VerifierServicer(verifier_service_pb2_grpc.VerifierServiceServicer):
    """One verifier's sessions; each stream is one session."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    async def Verify(self, requests: AsyncIterator[pb.VerifyRequest], context: Any) -> None:
        """Answer ``open``, then send the verdicts of every round."""
        async with ended_by_silence(self._model.silence, context.peer()) as silence:
            spec = session_spec_from_pb(await open_spec(requests), self._model.context_length)
            async with self._model.open(spec, VerifySession) as session:
                silence.heard()
                idle_ms = self._model.silence.session_idle_ms
                await context.write(pb.VerifyResponse(opened=True, session_idle_ms=idle_ms))
                await self._send_verdicts(requests, session, context, silence)

    async def _send_verdicts(
        self, requests: AsyncIterator[pb.VerifyRequest], session: VerifySession, context: Any, silence: Silence
    ) -> None:
        outbox: Outbox = asyncio.Queue()
        stopwatch = Stopwatch()
        reading = self._read_rounds(requests, session, outbox, stopwatch, silence)
        reader = asyncio.create_task(_ending(outbox, reading))
        try:
            while (item := await outbox.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                if isinstance(item, Verdict):
                    verdict = verdict_to_pb(item)
                    verdict.verify_us = min(stopwatch.lap_us(), MAX_UINT32)
                    await context.write(verdict)
                else:
                    await context.write(prompt_logprobs_to_pb(item))
        finally:
            await _cancel(reader)

    async def _read_rounds(
        self,
        requests: AsyncIterator[pb.VerifyRequest],
        session: VerifySession,
        outbox: Outbox,
        stopwatch: Stopwatch,
        silence: Silence,
    ) -> None:
        """Run each round on the engine. One that arrives while another runs ends that one's solo run.

        Follow-ups are for the round that runs, which goes on with one of them by itself.
        """
        rounds = VerifyRounds(self._model, session, outbox.put_nowait, silence.working)
        try:
            async for message in requests:
                silence.heard()
                if is_keep_alive(message):
                    continue
                if message.WhichOneof("message") == "follow_ups":
                    session.expect(self._follow_ups(message.follow_ups))
                    continue
                stopwatch.start()
                await rounds.begin(verify_round_from_pb(round_of(message)))
            await rounds.ended()
        finally:
            await rounds.cancel()

    def _follow_ups(self, message: pb.FollowUps) -> FollowUps:
        follow_ups = follow_ups_from_pb(message)
        check_token_ids("follow_ups.branches.token_ids", message.branches.token_ids, self._model.vocab_size)
        return follow_ups

    async def GetModelInfo(
        self, request: types_pb2.GetModelInfoRequest, context: Any
    ) -> types_pb2.GetModelInfoResponse:
        """Say what is loaded."""
        return model_info_to_pb(self._model.info())


async def _ending(outbox: Outbox, work: Coroutine[Any, Any, None]) -> None:
    """Read rounds to the end of the stream, and end the answers too."""
    try:
        await work
    except Exception as error:
        outbox.put_nowait(error)
    else:
        outbox.put_nowait(None)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def add_servicer(model: ServedModel, handlers: Any) -> None:
    """Put the servicer for ``model`` into the server's handlers."""
    verifier_service_pb2_grpc.add_VerifierServiceServicer_to_server(VerifierServicer(model), handlers)
