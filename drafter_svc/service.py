"""gRPC DrafterService: convert, call, convert."""

from collections.abc import AsyncIterator
from typing import Any

from drafter_svc.run_ahead.budget import RunAheadBudget
from drafter_svc.serving import DraftRounds, maker_of
from drafter_svc.sources.source import SourceSession
from specgate.rpc.convert import MAX_UINT32, draft_response_to_pb, draft_round_from_pb
from specgate.rpc.convert_ahead import announcement_to_pb
from specgate.rpc.convert_session import model_info_to_pb, session_spec_from_pb
from specgate.service.outbox import Outbox
from specgate.service.silence import Silence, ended_by_silence
from specgate.service.stream import Stopwatch, is_keep_alive, open_spec, round_of
from specgate.types import Announcement
from specgate.v1 import drafter_service_pb2 as pb
from specgate.v1 import drafter_service_pb2_grpc, types_pb2


class DrafterServicer(drafter_service_pb2_grpc.DrafterServiceServicer):
    """One drafter's sessions; each stream is one session.

    Args:
        served: a ``ServedModel``, or a ``ServedText`` where drafts come from no model.
    """

    def __init__(self, served: Any) -> None:
        self._served = served
        self._budget = RunAheadBudget(served.run_ahead_rows)
        self._maker_of = maker_of(served)

    async def Draft(self, requests: AsyncIterator[pb.DraftRequest], context: Any) -> None:
        """Answer ``open``, then every round that asks for tokens, and guess what the next one asks."""
        async with ended_by_silence(self._served.silence, context.peer()) as silence:
            spec = session_spec_from_pb(await open_spec(requests), self._served.context_length)
            async with self._served.open(spec, self._maker_of(spec)) as session, Outbox(context.write) as outbox:
                idle_ms = self._served.silence.session_idle_ms
                await outbox.send(pb.DraftResponse(opened=True, session_idle_ms=idle_ms))
                with silence.working():
                    await self._served.engine.run(session.warm())
                with self._budget.sharing(session):
                    await self._answer_rounds(requests, session, outbox, silence)

    async def _answer_rounds(
        self, requests: AsyncIterator[pb.DraftRequest], session: SourceSession, outbox: Outbox, silence: Silence
    ) -> None:
        stopwatch = Stopwatch()

        def announce(announcement: Announcement) -> None:
            outbox.post(announcement_to_pb(announcement))

        rounds = DraftRounds(self._served, session, self._budget, announce)
        async for message in requests:
            if is_keep_alive(message):
                silence.heard()
                continue
            stopwatch.start()
            request = draft_round_from_pb(round_of(message), tuple(session.last_proposal))
            with silence.working():
                proposal = await rounds.draft(request)
            if request.gamma:
                response = draft_response_to_pb(request.round, proposal)
                response.draft_us = min(stopwatch.lap_us(), MAX_UINT32)
                await outbox.send(response)
            rounds.prepare()

    async def GetModelInfo(
        self, request: types_pb2.GetModelInfoRequest, context: Any
    ) -> types_pb2.GetModelInfoResponse:
        """Say what is loaded."""
        return model_info_to_pb(self._served.info())


def add_servicer(served: Any, handlers: Any) -> None:
    """Put the servicer for what is served into the server's handlers."""
    drafter_service_pb2_grpc.add_DrafterServiceServicer_to_server(DrafterServicer(served), handlers)
