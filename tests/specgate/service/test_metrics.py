"""``/metrics`` of one service, as Prometheus reads it."""

import asyncio
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.decode.ports import Lease
from specgate.errors import InvalidArgument, TooManySessions
from specgate.service.config import config_of
from specgate.service.replica import Replica
from specgate.types import SamplingParams, SessionSpec, Verification
from tests.support.models import quiet, write_llama
from tests.support.orchestrating import dialing
from tests.support.patience import PATIENCE_S

SPEC = SessionSpec((1, 2, 3), SamplingParams(), 7, Verification.SHARED_NOISE, 16, vocab_size=64)


async def metrics(endpoint: str | None) -> dict[str, float]:
    def read() -> str:
        with urllib.request.urlopen(f"http://{endpoint}/metrics", timeout=PATIENCE_S) as answer:
            text: str = answer.read().decode()
            return text

    families = list(text_string_to_metric_families(await asyncio.to_thread(read)))
    return {
        "".join((sample.name.removeprefix("specgate_"), sample.labels.get("reason", ""))): sample.value
        for family in families
        for sample in family.samples
    }


async def test_a_service_tells_sessions_pages_and_its_heartbeat(tmp_path: Path) -> None:
    settings = {"model": str(write_llama(tmp_path)), "device": "cpu", "threads": 1, "max_sessions": 1}
    replica = Replica("verifier", config_of("verifier", **settings, kv_tokens=1024, drain_s=1.0, metrics_port=0))
    await replica.start(quiet)
    async with dialing() as dialer:
        at_rest = await metrics(replica.metrics_endpoint)
        assert (at_rest["sessions_active"], at_rest["kv_cache_usage_perc"], at_rest["sessions_total"]) == (0, 0, 0)
        session = await dialer.open_verifier(Lease(replica.endpoint), SPEC)
        with pytest.raises(TooManySessions):
            await dialer.open_verifier(Lease(replica.endpoint), SPEC)
        found = await metrics(replica.metrics_endpoint)
        assert (found["sessions_active"], found["max_sessions"], found["sessions_total"]) == (1, 1, 1)
        assert found["sessions_refused_totalTOO_MANY_SESSIONS"] == 1
        assert 0 < found["kv_cache_usage_perc"] == found["kv_tokens_used"] / found["kv_tokens"] <= 1
        assert 0 <= found["engine_step_age_seconds"] < 10
        await session.close()
    await replica.drain()
    with pytest.raises(OSError, match="refused"):
        await metrics(replica.metrics_endpoint)


@pytest.mark.parametrize("tls", [{}, {"tls_certificate": "c", "tls_key": "k"}])
def test_an_address_beyond_loopback_needs_consent_whatever_sessions_have(tls: dict[str, str]) -> None:
    asked = {"model": "m", "metrics_host": "0.0.0.0", **tls}
    with pytest.raises(InvalidArgument, match=r"--metrics-host: .* is beyond loopback"):
        config_of("verifier", **asked, metrics_port=9100)
    assert config_of("verifier", **asked, metrics_port=9100, insecure=True).metrics_host == "0.0.0.0"


async def test_a_port_that_is_taken_is_told_by_its_flag_and_ends_the_load(tmp_path: Path) -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        replica = Replica("verifier", config_of("verifier", model=str(write_llama(tmp_path)), metrics_port=port))
        with pytest.raises(InvalidArgument, match="--metrics-port: "):
            await replica.start(quiet)
