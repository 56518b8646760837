"""gRPC DrafterService: convert, call, convert."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from drafter_svc.drafter import Drafting, DraftSession
from drafter_svc.run_ahead.budget import RunAheadBudget
from drafter_svc.run_ahead.sharpness import SharpnessByMode
from specgate.errors import InvalidArgument
from specgate.rpc.convert import draft_response_to_pb, draft_round_from_pb
from specgate.rpc.convert_ahead import announcement_to_pb
from specgate.rpc.convert_session import model_info_to_pb, session_spec_from_pb
from specgate.rpc.validate import check_token_ids
from specgate.service.model import ServedModel
from specgate.service.outbox import Outbox
from specgate.service.stream import Stopwatch, open_spec, round_of
from specgate.types import Announcement, DraftRequest
from specgate.v1 import drafter_service_pb2 as pb
from specgate.v1 import drafter_service_pb2_grpc, types_pb2


class DrafterServicer(drafter_service_pb2_grpc.DrafterServiceServicer):
    """One drafter's sessions; each stream is one session."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._budget = RunAheadBudget(model.run_ahead_rows)
        self._sharpness = SharpnessByMode()

    async def Draft(self, requests: AsyncIterator[pb.DraftRequest], context: Any) -> None:
        """Answer ``open``, then every round that asks for tokens, and guess what the next one asks."""
        spec = session_spec_from_pb(await open_spec(requests), self._model.context_length)
        make = partial(DraftSession, sharpness=self._sharpness.of(spec.sampling))
        async with self._model.open(spec, make) as session, Outbox(context.write) as outbox:
            await outbox.send(pb.DraftResponse(opened=True))
            await self._model.engine.run(session.warm())
            vocab_size, engine = self._model.known_vocab_size(spec), self._model.engine
            stopwatch = Stopwatch()

            def announce(announcement: Announcement) -> None:
                outbox.post(announcement_to_pb(announcement))

            with self._budget.sharing(session):
                async for message in requests:
                    stopwatch.start()
                    request = self._request(round_of(message), session, vocab_size)
                    guess = partial(session.ahead.start, submit=engine.submit, announce=announce)
                    proposal = await engine.run(drafting(session, request, partial(guess, self._budget.share(session))))
                    if request.gamma:
                        proposal = replace(proposal, draft_us=stopwatch.lap_us())
                        await outbox.send(draft_response_to_pb(request.round, proposal))
                    if not session.ahead.was_announced:
                        guess(self._budget.share(session))

    def _request(self, message: pb.DraftRound, session: DraftSession, vocab_size: int) -> DraftRequest:
        request = draft_round_from_pb(message, tuple(session.last_proposal))
        check_token_ids("round.token_ids", request.token_ids, vocab_size)
        if request.position + len(request.token_ids) > session.spec.max_length:
            raise InvalidArgument("round.token_ids", f"pass the session's {session.spec.max_length} tokens")
        return request

    async def GetModelInfo(
        self, request: types_pb2.GetModelInfoRequest, context: Any
    ) -> types_pb2.GetModelInfoResponse:
        """Say what is loaded."""
        return model_info_to_pb(self._model.info())


def drafting(session: DraftSession, request: DraftRequest, guess: Callable[[], None]) -> Drafting:
    """Draft, and ``guess`` on at once where the answer was announced; any other one goes out before guessing begins."""
    proposal = yield from session.draft(request)
    if session.ahead.was_announced:
        guess()
    return proposal


def add_servicer(model: ServedModel, handlers: Any) -> None:
    """Put the servicer for ``model`` into the server's handlers."""
    drafter_service_pb2_grpc.add_DrafterServiceServicer_to_server(DrafterServicer(model), handlers)
