"""What the tests of services share."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from orchestrator.services.links import GrpcDialer, WrapCall
from orchestrator.services.streams import ChannelCache
from tests.support.decoding import emitted, target_alone
from tests.support.faults import Run


async def exact(one: Run) -> Run:
    """Run a request to its end, and check that its text is what the target alone says: no gap and no repeat."""
    assert emitted(await one()) == target_alone(one.session.opening_spec)
    return one


@asynccontextmanager
async def dialing(open_timeout_s: float = 30.0, wrap_call: WrapCall | None = None) -> AsyncIterator[GrpcDialer]:
    """Yield what opens sessions over channels of its own."""
    channels = ChannelCache()
    yield GrpcDialer(channels, open_timeout_s, wrap_call)
    await channels.close()
