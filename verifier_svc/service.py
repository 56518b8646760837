"""gRPC VerifierService: convert, call, convert. Verdicts are sent as the engine makes them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from specgate.rpc.convert import MAX_UINT32, prompt_logprobs_to_pb, verdict_to_pb, verify_round_from_pb
from specgate.rpc.convert_ahead import follow_ups_from_pb, running_draft_from_pb
from specgate.rpc.validate import check_token_ids
from specgate.service.model import ServedModel
from specgate.service.servicer import SessionServicer
from specgate.service.silence import Silence
from specgate.service.stream import Stopwatch, is_keep_alive, round_of
from specgate.types import FollowUps, RunningDraft, Verdict
from specgate.v1 import types_pb2, verifier_service_pb2_grpc
from specgate.v1 import verifier_service_pb2 as pb
from verifier_svc.rounds import PromptLogprobs, VerifyRounds
from verifier_svc.verifier import VerifySession

Outbox = asyncio.Queue[Verdict | PromptLogprobs | Exception | asyncio.Task[None]]
"""Log-probabilities of the prompt, then verdicts, in order. An exception ends the stream, and so does the task that has
read all rounds."""


class VerifierServicer(SessionServicer[ServedModel], verifier_service_pb2_grpc.VerifierServiceServicer):
    """The sessions of one verifier; each stream is one session."""

    async def Verify(self, requests: AsyncIterator[pb.VerifyRequest], context: Any) -> None:
        """Answer ``open``, then send the verdicts of every round."""
        async with self._opened(requests, context, lambda spec: VerifySession) as (session, silence):
            opened = pb.VerifyResponse(opened=True, session_idle_ms=self._session_idle_ms, running_drafts=True)
            await context.write(opened)
            outbox: Outbox = asyncio.Queue()
            stopwatch = Stopwatch()
            reader = asyncio.create_task(self._read_rounds(requests, session, outbox, stopwatch, silence))
            reader.add_done_callback(outbox.put_nowait)
            try:
                await _send(outbox, context, stopwatch)
            finally:
                reader.cancel()
                await asyncio.gather(reader, return_exceptions=True)

    async def _read_rounds(
        self,
        requests: AsyncIterator[pb.VerifyRequest],
        session: VerifySession,
        outbox: Outbox,
        stopwatch: Stopwatch,
        silence: Silence,
    ) -> None:
        """Run each round on the engine. A round that arrives while another runs ends the other's solo run.

        Follow-ups belong to the round that runs: the session goes on with one of them by itself.
        """
        rounds = VerifyRounds(self._served, session, outbox.put_nowait, silence.working)
        try:
            async for message in requests:
                silence.restart()
                if is_keep_alive(message):
                    continue
                match message.WhichOneof("message"):
                    case "follow_ups":
                        session.expect(self._follow_ups(message.follow_ups))
                        continue
                    case "running_draft":
                        session.run_on(self._running_draft(message.running_draft))
                        continue
                stopwatch.start()
                await rounds.begin(verify_round_from_pb(round_of(message)))
            await rounds.ended()
        finally:
            await rounds.cancel()

    def _follow_ups(self, message: pb.FollowUps) -> FollowUps:
        follow_ups = follow_ups_from_pb(message)
        check_token_ids("follow_ups.branches.token_ids", message.branches.token_ids, self._served.vocab_size)
        return follow_ups

    def _running_draft(self, message: types_pb2.RunningDraft) -> RunningDraft:
        check_token_ids("running_draft.draft_token_ids", message.draft_token_ids, self._served.vocab_size)
        return running_draft_from_pb(message)


async def _send(outbox: Outbox, context: Any, stopwatch: Stopwatch) -> None:
    """Send what the rounds give. Raises what a round, or the reading of rounds, failed with."""
    while not isinstance(item := await outbox.get(), asyncio.Task):
        if isinstance(item, Exception):
            raise item
        if isinstance(item, Verdict):
            response = verdict_to_pb(item)
            response.verify_us = min(stopwatch.lap_us(), MAX_UINT32)
        else:
            response = prompt_logprobs_to_pb(item)
        await context.write(response)
    await item


def add_servicer(served: ServedModel, handlers: Any) -> None:
    """Add the servicer for ``served`` to the server's handlers."""
    verifier_service_pb2_grpc.add_VerifierServiceServicer_to_server(VerifierServicer(served), handlers)
