"""gRPC adapter of the drafter's port."""

import asyncio

from orchestrator.decode.lookahead import MAX_ANNOUNCEMENTS_PER_ROUND, Announcer
from orchestrator.services.streams import SessionStream, answered_by, check_round
from specgate.errors import InternalError
from specgate.rpc.convert import draft_response_from_pb, draft_round_to_pb
from specgate.rpc.convert_ahead import announcement_from_pb
from specgate.types import NO_PROPOSAL, DraftRequest, Proposal, common_prefix_length
from specgate.v1 import drafter_service_pb2


class GrpcDrafter(Announcer):
    """A session on a drafter. Reads its stream as it comes, so that what was announced is there when it is wanted."""

    def __init__(self, stream: SessionStream, *, rejects: bool = False) -> None:
        super().__init__(rejects=rejects)
        self._stream = stream
        self._proposed: tuple[int, ...] = ()
        self._num_unannounced = 0
        self._answers: asyncio.Queue[drafter_service_pb2.DraftResponse | Exception] = asyncio.Queue()
        self._lost: Exception | None = None
        self._listening = asyncio.create_task(self._listen())

    async def draft(self, request: DraftRequest) -> Proposal:
        """See ``ports.Drafter``."""
        if self._lost is not None:
            raise self._lost
        round_pb = draft_round_to_pb(request, common_prefix_length(self._proposed, request.token_ids))
        self._proposed = ()
        self._num_unannounced += MAX_ANNOUNCEMENTS_PER_ROUND
        self._commit(request)
        try:
            await self._stream.write(drafter_service_pb2.DraftRequest(round=round_pb))
            if request.gamma == 0:
                return NO_PROPOSAL
            answer = await self._answers.get()
        except asyncio.CancelledError:
            # The answer would be taken for the next round's.
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
            # Whoever waits for an answer, or comes later, gets the reason; of several the first.
            self._lost = error
            self._stream.close()
            self._answers.put_nowait(error)

    def _read(self, message: drafter_service_pb2.DraftResponse) -> None:
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
        self._add(announcement)
