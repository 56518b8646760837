"""The service that Ray's replicas run, in the test's own event loop."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.decode.ports import Lease
from orchestrator.services.links import GrpcDialer
from orchestrator.services.streams import ChannelCache
from specgate.errors import EngineFailed, InvalidArgument, LeaseRefused, ModelLoadError, ServiceUnavailable
from specgate.runtime.attention import kernels
from specgate.runtime.attention.interface import Kernel
from specgate.runtime.attention.kernels import Way
from specgate.runtime.attention.varlen_reference import varlen_attention
from specgate.runtime.cuda import graphs
from specgate.runtime.cuda.graphs import EagerCapturer
from specgate.runtime.engine import serving_path
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.engine.serving_path import build
from specgate.runtime.engine.sizing import COLD_FACTOR
from specgate.runtime.scheduler import Limits
from specgate.service.config import ServiceConfig, config_of, parse_flags
from specgate.service.leases import LeaseBook
from specgate.service.replica import Replica, _build, _limits
from specgate.types import ModelInfo, SamplingParams, SessionSpec, Verification
from tests.support.models import load_float32, write_llama

SPEC = SessionSpec((1, 2, 3), SamplingParams(), 7, Verification.SHARED_NOISE, 16, vocab_size=64)


def config_for(folder: Path) -> ServiceConfig:
    return ServiceConfig(model=str(folder), device="cpu", threads=1, max_sessions=2, kv_tokens=1024, drain_s=1.0)


@pytest.fixture
async def replica(tmp_path: Path) -> AsyncIterator[Replica]:
    replica = Replica("verifier", config_for(write_llama(tmp_path)), LeaseBook())
    await replica.start(lambda stage, done, total: None)
    yield replica
    await replica.drain()


@pytest.fixture
async def dialer() -> AsyncIterator[GrpcDialer]:
    channels = ChannelCache()
    yield GrpcDialer(channels, open_timeout_s=10.0)
    await channels.close()


async def info(dialer: GrpcDialer, replica: Replica) -> ModelInfo:
    return await dialer.model_info(Lease(replica.endpoint), "verifier")


async def test_a_session_needs_a_token_and_gives_the_lease_back(replica: Replica, dialer: GrpcDialer) -> None:
    assert replica.leases is not None
    for token in ("", "made-up"):
        with pytest.raises(LeaseRefused):
            await dialer.open_verifier(Lease(replica.endpoint, token), SPEC)
    with replica.leases.issued() as lease:
        session = await dialer.open_verifier(Lease(replica.endpoint, lease.token), SPEC)
        assert (await info(dialer, replica)).active_sessions == 1
        with pytest.raises(LeaseRefused):
            await dialer.open_verifier(Lease(replica.endpoint, lease.token), SPEC)
        await session.close()
        await lease.wait_ended()
    # Whoever is handed the lease's place next finds the session's place free.
    assert (await info(dialer, replica)).active_sessions == 0


async def test_the_service_says_how_its_engine_is(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    replica.check_health()
    monkeypatch.setattr(type(replica._model.engine), "heartbeat_age_s", 31.0)
    with pytest.raises(EngineFailed, match="the verifier's engine has had no heartbeat for 31 s"):
        replica.check_health()


async def test_a_drained_service_takes_no_session(tmp_path: Path, dialer: GrpcDialer) -> None:
    replica = Replica("drafter", config_for(write_llama(tmp_path)))
    stages: list[str] = []
    await replica.start(lambda stage, done, total: stages.append(stage))
    assert stages
    session = await dialer.open_drafter(Lease(replica.endpoint), SPEC)
    await session.close()
    await replica.drain()
    with pytest.raises(ServiceUnavailable):
        await dialer.open_drafter(Lease(replica.endpoint), SPEC)


async def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    replica = Replica("verifier", config_for(tmp_path / "nowhere"))
    with pytest.raises(ModelLoadError, match="nowhere"):
        await replica.start(lambda stage, done, total: None)


async def test_a_context_that_the_pages_do_not_hold_is_not_promised(replica: Replica, dialer: GrpcDialer) -> None:
    """Who asks for all that there is room for, as the doors do by default, must get it."""
    assert (await info(dialer, replica)).context_length == 512
    smaller = Replica("verifier", replica._config.model_copy(update={"kv_tokens": 128}))
    await smaller.start(lambda stage, done, total: None)
    assert (await info(dialer, smaller)).context_length == 128
    session = await dialer.open_verifier(Lease(smaller.endpoint), replace(SPEC, max_tokens=125))
    await session.close()
    with pytest.raises(InvalidArgument, match="3 prompt tokens plus 126 pass the context length of 128"):
        await dialer.open_verifier(Lease(smaller.endpoint), replace(SPEC, max_tokens=126))
    await smaller.drain()


async def test_pages_are_sized_and_taken_while_the_model_loads(tmp_path: Path) -> None:
    replica = Replica("verifier", config_for(write_llama(tmp_path)).model_copy(update={"kv_tokens": None}))
    await replica.start(lambda stage, done, total: None)
    runner = replica._model.engine.runner
    assert runner.pool.num_pages * runner.pool.page_size == COLD_FACTOR * 2 * 512
    assert runner.kv_bytes_a_token > 0
    await replica.drain()


@pytest.mark.parametrize(
    ("max_batch_tokens", "prefill_chunk", "device", "expected"),
    [
        (2048, None, "cpu", Limits(2048, 64, 256)),
        (2048, None, "cuda", Limits(2048, 512, 2048)),
        (512, None, "cuda", Limits(512, 256, 512)),
        (64, 4096, "cpu", Limits(64, 32, 64)),
        (64, 1, "cpu", Limits(64, 1, 4)),
    ],
)
def test_no_chunk_passes_a_forward_nor_fills_it(
    max_batch_tokens: int, prefill_chunk: int | None, device: str, expected: Limits
) -> None:
    config = config_of("verifier", model="m", max_batch_tokens=max_batch_tokens, prefill_chunk=prefill_chunk)
    assert _limits(config, device) == expected


async def test_attention_that_the_device_cannot_compute_is_refused_by_name(tmp_path: Path) -> None:
    config = config_for(write_llama(tmp_path)).model_copy(update={"attention": "varlen"})
    with pytest.raises(InvalidArgument, match="--attention: varlen cannot be had here: it needs a CUDA device"):
        await Replica("verifier", config).start(lambda stage, done, total: None)


def test_an_attention_that_there_is_not_is_refused_at_the_flag() -> None:
    with pytest.raises(InvalidArgument, match="--attention: 'flash' is not one of auto, varlen, sdpa"):
        config_of("verifier", model="m", attention="flash")


def test_graphs_are_a_flag_to_turn_off(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_flags("verifier", ["--model", "m"]).cuda_graphs
    config = parse_flags("verifier", ["--model", "m", "--no-cuda-graphs", "--attention", "sdpa"])
    assert (config.cuda_graphs, config.attention) == (False, "sdpa")
    with pytest.raises(SystemExit):
        parse_flags("verifier", ["--model", "m", "--attention", "flash"])
    assert "invalid choice: 'flash'" in capsys.readouterr().err


@pytest.mark.parametrize("cuda_graphs", [True, False])
def test_on_a_gpu_the_path_is_another_one_and_is_told(
    cuda_graphs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is decided before the device is touched; the CPU goes the same way with what stands in for it."""
    loaded = load_float32(write_llama(tmp_path))

    def on_the_cpu(_: object, wanted: list[Kernel], **options: Any) -> ModelRunner:
        assert options["page_size"] == 256
        return build(loaded, wanted, **options)

    monkeypatch.setattr(kernels, "fused_attention", lambda _: Way("the reference", varlen_attention))
    monkeypatch.setattr(graphs, "CudaCapturer", lambda device: EagerCapturer())
    monkeypatch.setattr(serving_path, "build", on_the_cpu)
    told: list[tuple[str, int, int]] = []
    config = config_for(tmp_path).model_copy(update={"cuda_graphs": cuda_graphs})
    on_cuda = replace(loaded, device=torch.device("cuda"), dtype=torch.bfloat16)
    runner = _build("verifier", on_cuda, config, lambda *stage: told.append(stage))
    assert runner.pool.num_pages == 4
    assert told[-1] == (f"attention by varlen (the reference), {10 if cuda_graphs else 0} CUDA graphs", 1, 1)
    assert (("graphs", 10, 10) in told) == cuda_graphs
