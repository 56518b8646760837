"""What the gRPC servicers of both services share."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from specgate.rpc.convert_session import model_info_to_pb, session_spec_from_pb
from specgate.service.served import S, Served
from specgate.service.silence import Silence, ended_by_silence
from specgate.service.stream import open_spec
from specgate.types import SessionSpec

AnyServed = TypeVar("AnyServed", bound=Served)


class SessionServicer(Generic[AnyServed]):
    """Opens sessions, and answers what is loaded."""

    def __init__(self, served: AnyServed) -> None:
        self._served = served

    async def GetModelInfo(self, request: Message, context: Any) -> Message:
        """Answer with what is loaded."""
        return model_info_to_pb(self._served.info())

    @property
    def _session_idle_ms(self) -> int:
        return self._served.silence.session_idle_ms

    @asynccontextmanager
    async def _opened(
        self, requests: AsyncIterator[Any], context: Any, maker_of: Callable[[SessionSpec], Callable[..., S]]
    ) -> AsyncIterator[tuple[S, Silence]]:
        """Open the session that the first message describes. It ends with the block, or when its client is silent."""
        async with ended_by_silence(self._served.silence, context.peer()) as silence:
            spec = session_spec_from_pb(await open_spec(requests), self._served.context_length)
            async with self._served.open(spec, maker_of(spec)) as session:
                silence.heard()
                yield session, silence
