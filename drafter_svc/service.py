"""gRPC DrafterService: convert, call, convert."""

from collections.abc import AsyncIterator
from typing import Any

from drafter_svc.rounds import DraftRounds, maker_of
from drafter_svc.run_ahead.budget import RunAheadBudget
from drafter_svc.sources.source import SourceSession
from specgate.rpc.convert import MAX_UINT32, draft_response_to_pb, draft_round_from_pb
from specgate.rpc.convert_ahead import ahead_to_pb
from specgate.service.outbox import Outbox
from specgate.service.served import Served
from specgate.service.servicer import SessionServicer
from specgate.service.silence import Silence
from specgate.service.stream import Stopwatch, is_keep_alive, round_of
from specgate.types import Ahead
from specgate.v1 import drafter_service_pb2 as pb
from specgate.v1 import drafter_service_pb2_grpc


class DrafterServicer(SessionServicer[Served], drafter_service_pb2_grpc.DrafterServiceServicer):
    """The sessions of one drafter; each stream is one session."""

    def __init__(self, served: Served) -> None:
        super().__init__(served)
        self._budget = RunAheadBudget(served.run_ahead_rows)
        self._maker_of = maker_of(served)

    async def Draft(self, requests: AsyncIterator[pb.DraftRequest], context: Any) -> None:
        """Answer ``open``, then every round that asks for tokens. Between rounds guess what the next one asks."""
        async with (
            self._opened(requests, context, self._maker_of) as (session, silence),
            Outbox(context.write) as outbox,
        ):
            await outbox.send(pb.DraftResponse(opened=True, session_idle_ms=self._session_idle_ms))
            with self._budget.sharing(session):
                await self._answer_rounds(requests, session, outbox, silence)

    async def _answer_rounds(
        self, requests: AsyncIterator[pb.DraftRequest], session: SourceSession, outbox: Outbox, silence: Silence
    ) -> None:
        stopwatch = Stopwatch()

        def announce(ahead: Ahead) -> None:
            outbox.post(ahead_to_pb(ahead))

        rounds = DraftRounds(self._served, session, self._budget, announce)
        with silence.working():
            await rounds.warm()
        async for message in requests:
            silence.restart()
            if is_keep_alive(message):
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


def add_servicer(served: Served, handlers: Any) -> None:
    """Add the servicer for ``served`` to the server's handlers."""
    drafter_service_pb2_grpc.add_DrafterServiceServicer_to_server(DrafterServicer(served), handlers)
