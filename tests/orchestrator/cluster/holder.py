"""A process that opens sessions by leases and keeps them, until it is killed: ``ADDRESS APP NUM_SESSIONS``."""

import asyncio
import sys

import ray
from ray import serve

from orchestrator.cluster.pool import ServePool
from orchestrator.services.links import GrpcDialer
from orchestrator.services.streams import ChannelCache
from specgate.types import SamplingParams, SessionSpec, Verification
from tests.support.patience import PATIENCE_S

SPEC = SessionSpec((1, 2, 3), SamplingParams(), 7, Verification.SHARED_NOISE, 16, vocab_size=64)


async def main(app_name: str, num_sessions: int) -> None:
    pool = ServePool("verifier", serve.get_app_handle(app_name), wait_s=20.0)
    dialer = GrpcDialer(ChannelCache(), open_timeout_s=PATIENCE_S)
    sessions = [await dialer.open_verifier(await pool.lease(), SPEC) for _ in range(num_sessions)]
    print("streaming", flush=True)
    await asyncio.Event().wait()
    print(sessions)


if __name__ == "__main__":
    ray.init(sys.argv[1], log_to_driver=False, logging_level="error")
    asyncio.run(main(sys.argv[2], int(sys.argv[3])))
