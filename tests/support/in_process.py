"""A real service in this process, as Ray's replicas run it: its engine in reach of a fault, its pages countable."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from specgate.rpc.channel import open_channel
from specgate.service.config import config_of
from specgate.service.replica import Replica
from specgate.v1 import types_pb2
from specgate.v1.drafter_service_pb2_grpc import DrafterServiceStub
from specgate.v1.verifier_service_pb2_grpc import VerifierServiceStub
from tests.support.models import quiet
from tests.support.patience import PATIENCE_S

STUBS: dict[str, Any] = {"drafter": DrafterServiceStub, "verifier": VerifierServiceStub}


class InProcess:
    """One service, and the ``ModelRunner`` behind it."""

    def __init__(self, role: str, folder: Path, **settings: Any) -> None:
        self.role = role
        values = {"device": "cpu", "threads": 1, "max_sessions": 48, "kv_tokens": 32_768, "drain_s": 1.0, **settings}
        self.replica = Replica(role, config_of(role, model=str(folder), **values))

    @property
    def runner(self) -> Any:
        """What no client sees: faults are put into it, and pages counted."""
        return self.replica._served.engine.runner  # type: ignore[attr-defined]

    @property
    def endpoint(self) -> str:
        return self.replica.endpoint

    @property
    def pages_in_use(self) -> int:
        pool = self.runner.pool
        return int(pool.num_pages - pool.num_free)

    async def settled(self, timeout_s: float = PATIENCE_S) -> None:
        """Return once it has no session and no page in use. Raises TimeoutError where one stays."""
        async with asyncio.timeout(timeout_s), open_channel(self.endpoint) as channel:
            stub = STUBS[self.role](channel)
            while self.pages_in_use or (await stub.GetModelInfo(types_pb2.GetModelInfoRequest())).active_sessions:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        self.runner.pool.check_integrity()


@asynccontextmanager
async def serving(role: str, folder: Path, **settings: Any) -> AsyncIterator[InProcess]:
    """Serve the model of a folder while the context lasts."""
    service = InProcess(role, folder, **settings)
    await service.replica.start(quiet)
    try:
        yield service
    finally:
        await service.replica.drain()
