"""A running pair, reached through proxies that add a delay."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.local.child import Child
from orchestrator.local.launch import Pair
from orchestrator.services.pool import StaticPool
from specgate.errors import ServiceUnavailable


@asynccontextmanager
async def delayed(
    pair: Pair, on_demand: str | None, delays_ms: Sequence[float]
) -> AsyncIterator[list[tuple[Orchestrator, Orchestrator | None]]]:
    """Yield, for each delay, the pair through proxies that add it, and the pair with the drafter ``on_demand``.

    A delay of 0 goes through a proxy too, so that the proxy itself costs the same in all of them.

    Raises:
        ServiceUnavailable: the proxies did not start, or a service does not answer through them.
    """
    services = (*pair.verifiers, *pair.drafters, *((on_demand,) if on_demand else ()))
    routes = [f"--route={endpoint},{delay_ms}" for delay_ms in delays_ms for endpoint in services]
    async with AsyncExitStack() as stack:
        child = await Child.start("specgate_lab.network.delay_proxy", routes)
        stack.push_async_callback(child.stop)
        ready = await child.next_event()
        if ready is None:
            raise ServiceUnavailable(f"the delaying proxy did not start:\n{child.last_words}")

        reached = []
        for index in range(len(delays_ms)):
            own = ready["endpoints"][index * len(services) : (index + 1) * len(services)]
            verifiers, drafters = own[: len(pair.verifiers)], own[len(pair.verifiers) :]
            ahead, asked = drafters[: len(pair.drafters)], drafters[len(pair.drafters) :]
            orchestrator = await stack.enter_async_context(await _through(pair, verifiers, ahead))
            other = await stack.enter_async_context(await _through(pair, verifiers, asked)) if asked else None
            reached.append((orchestrator, other))
        yield reached


async def _through(pair: Pair, verifiers: Sequence[str], drafters: Sequence[str]) -> Orchestrator:
    pools = StaticPool(verifiers), StaticPool(drafters)
    return await Orchestrator.connect(*pools, pair.tokenizer, wrap_call=pair.wrap_call)
