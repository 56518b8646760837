"""gRPC adapter of the drafter's port."""

import asyncio
from typing import Any

from orchestrator.announced import Announced
from orchestrator.streams import SessionStream, answered_by, check_round
from specgate.errors import InternalError, SpecgateError
from specgate.rpc.convert import announcement_from_pb, draft_response_from_pb, draft_round_to_pb
from specgate.types import DraftRequest, Proposal, common_prefix_length
from specgate.v1 import drafter_service_pb2

NO_PROPOSAL = Proposal()


class GrpcDrafter:
    """A session on a drafter. Reads its stream as it comes, so that what was announced is there when it is wanted."""

    def __init__(self, stream: SessionStream) -> None:
        self._stream = stream
        self._last_draft_token_ids: tuple[int, ...] = ()
        self._announced = Announced()
        self._answers: asyncio.Queue[Any] = asyncio.Queue(maxsize=1)
        self._listening = asyncio.create_task(self._listen())
        self._asking: asyncio.Task[Proposal] | None = None

    async def draft(self, request: DraftRequest) -> Proposal:
        """See ``ports.Drafter``. What was announced is returned at once; its round goes out behind the caller's back,
        and is answered before the next one.
        """
        asking, self._asking = self._asking, None
        if asking is not None:
            await asking
        drafted, self._last_draft_token_ids = self._last_draft_token_ids, ()
        with answered_by(self._stream.peer):
            announced = self._announced.take(request, drafted)
        if announced is None:
            return await self._ask(request, drafted)
        self._asking = asyncio.create_task(self._ask(request, drafted))
        return announced

    async def close(self) -> None:
        """See ``ports.Drafter``."""
        self._stream.close()
        tasks = [task for task in (self._asking, self._listening) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, request: DraftRequest, drafted: tuple[int, ...]) -> Proposal:
        round_pb = draft_round_to_pb(request, common_prefix_length(drafted, request.token_ids))
        try:
            await self._stream.write(drafter_service_pb2.DraftRequest(round=round_pb))
            if request.gamma == 0:
                return NO_PROPOSAL
            answer = await self._answers.get()
        except asyncio.CancelledError:
            # The answer would be taken for the next round's.
            self._stream.close()
            raise
        if isinstance(answer, SpecgateError):
            raise answer
        with answered_by(self._stream.peer):
            check_round(answer.round, request.round)
            proposal = draft_response_from_pb(answer, request.gamma)
        self._last_draft_token_ids = proposal.draft_token_ids
        return proposal

    async def _listen(self) -> None:
        try:
            while True:
                self._hear(await self._stream.read())
        except SpecgateError as error:
            self._stream.close()
            await self._answers.put(error)

    def _hear(self, message: drafter_service_pb2.DraftResponse) -> None:
        if message.HasField("announced"):
            with answered_by(self._stream.peer):
                self._announced.hear(announcement_from_pb(message.announced))
        elif self._answers.full():
            raise InternalError(f"{self._stream.peer} answers more than it was asked")
        else:
            self._answers.put_nowait(message)
