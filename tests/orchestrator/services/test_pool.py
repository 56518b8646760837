"""Which endpoint is handed out, and when a failed one is again."""

import asyncio
from collections import Counter

import pytest

from orchestrator.decode.ports import Lease
from orchestrator.services.pool import HealthCheck, StaticPool, grpc_health
from specgate.errors import InvalidArgument, ServiceUnavailable
from specgate.rpc.server import Server
from specgate.rpc.server_options import ServerOptions
from tests.support.fake_services import silent
from tests.support.patience import patience

HERE, THERE = "host:1", "host:2"


class Health:
    """A health check by hand."""

    def __init__(self) -> None:
        self.healthy: set[str] = set()
        self.looks: Counter[str] = Counter()

    async def __call__(self, endpoint: str) -> bool:
        self.looks[endpoint] += 1
        await asyncio.sleep(0)
        return endpoint in self.healthy


async def test_fewest_sessions_first() -> None:
    pool = StaticPool([HERE, THERE], Health())
    leases = [await pool.lease() for _ in range(6)]
    assert Counter(lease.endpoint for lease in leases) == {HERE: 3, THERE: 3}
    for lease in leases:
        if lease.endpoint == HERE:
            pool.release(lease)
    assert [(await pool.lease()).endpoint for _ in range(3)] == [HERE] * 3


async def test_equal_ones_are_chosen_by_chance() -> None:
    """Many processes with a pool each must not all begin with the first endpoint."""
    first = {(await StaticPool([HERE, THERE], Health()).lease()).endpoint for _ in range(60)}
    assert first == {HERE, THERE}


async def test_a_dear_endpoint_gets_sessions_once_the_cheap_one_has_so_many_more() -> None:
    token_us = {HERE: 100.0, THERE: 300.0}
    pool = StaticPool([HERE, THERE], Health())
    leased = [(await pool.lease(lambda endpoint, num: (num + 1) * token_us[endpoint])).endpoint for _ in range(12)]
    assert leased[:2] == [HERE] * 2
    assert 8 <= leased.count(HERE) <= 10


async def test_failed_one_is_skipped_until_it_is_healthy() -> None:
    health = Health()
    pool = StaticPool([HERE, THERE], health, recheck_interval_s=0.01)
    pool.release(await lease_of(pool, HERE), failed=True)
    assert {(await pool.lease()).endpoint for _ in range(10)} == {THERE}
    health.healthy.add(HERE)
    await asyncio.sleep(0.1)
    assert (await pool.lease()).endpoint == HERE
    looks = health.looks[HERE]
    await asyncio.sleep(0.05)
    assert health.looks[HERE] == looks  # a healthy one is left alone
    await pool.close()


async def lease_of(pool: StaticPool, endpoint: str) -> Lease:
    while (lease := await pool.lease()).endpoint != endpoint:
        pass
    return lease


async def test_all_failed_are_looked_at_once_on_demand() -> None:
    health = Health()
    pool = StaticPool([HERE, THERE], health)
    for endpoint in (HERE, THERE):
        pool.release(await lease_of(pool, endpoint), failed=True)
    health.healthy.add(THERE)
    assert (await pool.lease()).endpoint == THERE
    await pool.close()


async def broken(endpoint: str) -> bool:
    raise RuntimeError("no such file")


@pytest.mark.parametrize("health", [Health(), broken], ids=["unhealthy", "a check that breaks"])
async def test_none_healthy_is_told_with_names_and_at_once(health: HealthCheck) -> None:
    pool = StaticPool([HERE], health, field="--verifier")
    pool.release(await pool.lease(), failed=True)
    for _ in range(2):
        async with asyncio.timeout(0.5):
            with pytest.raises(ServiceUnavailable, match=f"--verifier: none of {HERE} is healthy"):
                await pool.lease()
    await pool.close()
    await pool.close()


@pytest.mark.parametrize("endpoints", [[], [""], ["host"], [":1"], ["host:x"], ["host:70000"], ["host:0"], ["a:b:1"]])
def test_bad_address_names_the_flag(endpoints: list[str]) -> None:
    with pytest.raises(InvalidArgument, match=r"^--drafter: "):
        StaticPool(endpoints, field="--drafter")


async def test_one_that_is_looked_at_with_half_written_files_is_looked_at_again() -> None:
    looks, looked_again = 0, asyncio.Event()

    async def check(endpoint: str) -> bool:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise InvalidArgument("tls.certificate", "half written")
        looked_again.set()
        return True

    pool = StaticPool([HERE], check, recheck_interval_s=0.01)
    pool.release(await pool.lease(), failed=True)
    async with patience():
        await looked_again.wait()
    assert (await pool.lease()).endpoint == HERE
    await pool.close()


async def test_health_over_grpc() -> None:
    check, server = grpc_health(timeout_s=30.0), Server("specgate.test.Service", ServerOptions())
    await server.start()
    assert not await check(server.endpoint)
    await server.set_ready()
    assert await check(server.endpoint)
    await server.drain()
    assert not await check(server.endpoint)


async def test_stopped_process_is_not_healthy() -> None:
    with silent() as endpoint:
        async with patience():
            assert not await grpc_health(timeout_s=0.2)(endpoint)
