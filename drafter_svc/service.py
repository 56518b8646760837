"""gRPC DrafterService: convert, call, convert."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from drafter_svc.run_ahead.budget import RunAheadBudget
from drafter_svc.sources.source import SourceSession, Work
from specgate.errors import InvalidArgument
from specgate.rpc.convert import draft_response_to_pb, draft_round_from_pb
from specgate.rpc.convert_ahead import announcement_to_pb
from specgate.rpc.convert_session import model_info_to_pb, session_spec_from_pb
from specgate.rpc.validate import check_token_ids
from specgate.service.outbox import Outbox
from specgate.service.silence import Silence, ended_by_silence
from specgate.service.stream import Stopwatch, is_keep_alive, open_spec, round_of
from specgate.types import Announcement, DraftRequest, SessionSpec
from specgate.v1 import drafter_service_pb2 as pb
from specgate.v1 import drafter_service_pb2_grpc, types_pb2

MakerOf = Callable[[SessionSpec], Callable[..., SourceSession]]
"""Returns what makes the session of a specification, when it has been admitted."""


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
        vocab_size, engine = self._served.known_vocab_size(session.spec), self._served.engine
        stopwatch = Stopwatch()

        def announce(announcement: Announcement) -> None:
            outbox.post(announcement_to_pb(announcement))

        async for message in requests:
            if is_keep_alive(message):
                silence.heard()
                continue
            stopwatch.start()
            request = self._request(round_of(message), session, vocab_size)
            guess = partial(session.ahead.start, submit=engine.submit, announce=announce)
            with silence.working():
                proposal = await engine.run(drafting(session, request, partial(guess, self._budget.share(session))))
            if request.gamma:
                proposal = replace(proposal, draft_us=stopwatch.lap_us())
                await outbox.send(draft_response_to_pb(request.round, proposal))
            if not session.ahead.was_announced:
                guess(self._budget.share(session))

    def _request(self, message: pb.DraftRound, session: SourceSession, vocab_size: int) -> DraftRequest:
        request = draft_round_from_pb(message, tuple(session.last_proposal))
        check_token_ids("round.token_ids", request.token_ids, vocab_size)
        if request.position + len(request.token_ids) > session.spec.max_length:
            raise InvalidArgument("round.token_ids", f"pass the session's {session.spec.max_length} tokens")
        return request

    async def GetModelInfo(
        self, request: types_pb2.GetModelInfoRequest, context: Any
    ) -> types_pb2.GetModelInfoResponse:
        """Say what is loaded."""
        return model_info_to_pb(self._served.info())


def maker_of(served: Any) -> MakerOf:
    """Return how the sessions of a service are made; torch is imported only where there is a model."""
    if not served.draft_method.has_model:
        from drafter_svc.sources.answer_memory import AnswerMemory
        from drafter_svc.sources.suffix_session import SuffixSession

        memory = AnswerMemory(served.memory_bytes) if served.memory_bytes else None
        return lambda spec: partial(SuffixSession, memory=memory)
    from drafter_svc.drafter import DraftSession
    from drafter_svc.run_ahead.sharpness import SharpnessByMode

    sharpness = SharpnessByMode()
    return lambda spec: partial(DraftSession, sharpness=sharpness.of(spec.sampling), method=served.draft_method)


def drafting(session: SourceSession, request: DraftRequest, guess: Callable[[], None]) -> Work:
    """Draft, and ``guess`` on at once where the answer was announced; any other one goes out before guessing begins."""
    proposal = yield from session.draft(request)
    if session.ahead.was_announced:
        guess()
    return proposal


def add_servicer(served: Any, handlers: Any) -> None:
    """Put the servicer for what is served into the server's handlers."""
    drafter_service_pb2_grpc.add_DrafterServiceServicer_to_server(DrafterServicer(served), handlers)
