"""The service that Ray's replicas run, in the test's own event loop."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.decode.ports import Lease
from orchestrator.services.links import GrpcDialer
from specgate import cpu_library
from specgate.errors import EngineFailed, InvalidArgument, LeaseRefused, ServiceUnavailable
from specgate.runtime.attention import kernels
from specgate.runtime.attention.interface import Kernel
from specgate.runtime.attention.kernels import FusedAttention
from specgate.runtime.attention.reference import varlen_attention
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.engine.serving_path import build
from specgate.runtime.engine.sizing import COLD_FACTOR
from specgate.runtime.scheduler import Limits
from specgate.service import loading
from specgate.service.config import ServiceConfig, config_of
from specgate.service.leases import LeaseBook
from specgate.service.replica import Replica
from specgate.types import Attention, ModelInfo, SamplingParams, SessionSpec, Verification
from tests.support.models import load_float32, quiet, write_llama
from tests.support.orchestrating import dialing
from tests.support.tape import EagerCapturer

SPEC = SessionSpec((1, 2, 3), SamplingParams(), 7, Verification.SHARED_NOISE, 16, vocab_size=64)


def config_for(folder: Path) -> ServiceConfig:
    return ServiceConfig(model=str(folder), device="cpu", threads=1, max_sessions=2, kv_tokens=1024, drain_s=1.0)


@asynccontextmanager
async def serving(config: ServiceConfig, leases: LeaseBook | None = None) -> AsyncIterator[Replica]:
    replica = Replica("verifier", config, leases)
    await replica.start(quiet)
    yield replica
    await replica.drain()


@pytest.mark.parametrize(
    ("asked", "attention", "told"), [("none", Attention.AUTO, 1), ("none", Attention.SDPA, 0), ("", Attention.AUTO, 0)]
)
async def test_products_by_torch_are_told_unless_they_are_wanted(
    asked: str, attention: Attention, told: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cpu_library.VARIABLE, asked)
    notices: list[str] = []
    replica = Replica("verifier", config_for(write_llama(tmp_path)).model_copy(update={"attention": attention}))
    await replica.start(quiet, notices.append)
    await replica.drain()
    assert len(notices) == told
    assert all(notice.startswith("SLOW: products by torch on cpu: SPECGATE_CPU_KERNELS=none") for notice in notices)


@pytest.fixture
async def replica(tmp_path: Path) -> AsyncIterator[Replica]:
    async with serving(config_for(write_llama(tmp_path)), LeaseBook()) as replica:
        yield replica


@pytest.fixture
async def dialer() -> AsyncIterator[GrpcDialer]:
    async with dialing() as dialer:
        yield dialer


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
    at_rest = await info(dialer, replica)
    # Nor does a stranger learn where the model lies.
    assert "/" not in at_rest.model
    assert (at_rest.active_sessions, at_rest.context_length) == (0, 512)


async def test_a_drained_service_takes_no_session_and_says_how_its_engine_is(
    tmp_path: Path, dialer: GrpcDialer
) -> None:
    replica = Replica("drafter", config_for(write_llama(tmp_path)))
    stages: list[str] = []
    await replica.start(lambda stage, done, total: stages.append(stage))
    assert stages
    replica.check_health()
    session = await dialer.open_drafter(Lease(replica.endpoint), SPEC)
    await session.close()
    await replica.drain()
    with pytest.raises(ServiceUnavailable):
        await dialer.open_drafter(Lease(replica.endpoint), SPEC)
    with pytest.raises(EngineFailed, match="the drafter's engine has had no heartbeat for inf s"):
        replica.check_health()


async def test_a_context_that_the_pages_do_not_hold_is_not_promised(tmp_path: Path, dialer: GrpcDialer) -> None:
    """Who asks for all that there is room for, as the doors do by default, must get it."""
    async with serving(config_for(write_llama(tmp_path)).model_copy(update={"kv_tokens": 128})) as replica:
        assert (await info(dialer, replica)).context_length == 128
        session = await dialer.open_verifier(Lease(replica.endpoint), replace(SPEC, max_tokens=125))
        await session.close()
        with pytest.raises(InvalidArgument, match="3 prompt tokens plus 126 pass the context length of 128"):
            await dialer.open_verifier(Lease(replica.endpoint), replace(SPEC, max_tokens=126))


async def test_pages_are_sized_and_taken_while_the_model_loads(tmp_path: Path, dialer: GrpcDialer) -> None:
    async with serving(config_for(write_llama(tmp_path)).model_copy(update={"kv_tokens": None})) as replica:
        assert (await info(dialer, replica)).kv_tokens == COLD_FACTOR * 2 * 512


@pytest.mark.parametrize(
    ("max_batch_tokens", "prefill_chunk", "device", "expected"),
    [
        (2048, None, "cpu", Limits(2048, 64, 256)),
        (2048, None, "cuda", Limits(2048, 512, 2048)),
        (64, 4096, "cpu", Limits(64, 32, 64)),
        (64, 1, "cpu", Limits(64, 1, 4)),
    ],
)
def test_no_chunk_passes_a_forward_nor_fills_it(
    max_batch_tokens: int, prefill_chunk: int | None, device: str, expected: Limits
) -> None:
    config = config_of("verifier", model="m", max_batch_tokens=max_batch_tokens, prefill_chunk=prefill_chunk)
    assert loading.limits_of(config, device) == expected


async def test_attention_that_the_device_cannot_compute_is_refused_by_name(tmp_path: Path) -> None:
    config = config_for(write_llama(tmp_path)).model_copy(update={"attention": "varlen"})
    with pytest.raises(InvalidArgument, match="--attention: varlen cannot be had here: it needs a CUDA device"):
        await Replica("verifier", config).start(quiet)


@pytest.mark.parametrize(("role", "told_of_drafts"), [("verifier", ""), ("drafter", ", drafts by forwards in a row")])
@pytest.mark.parametrize("cuda_graphs", [True, False])
def test_on_a_gpu_the_path_is_another_one_and_is_told(
    cuda_graphs: bool, role: str, told_of_drafts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is decided before the device is touched; the CPU goes the same way with what stands in for it."""
    loaded = load_float32(write_llama(tmp_path))

    def on_the_cpu(_: object, wanted: list[Kernel], **options: Any) -> ModelRunner:
        assert options["page_size"] == 256
        return build(loaded, wanted, **options)

    # There is no GPU here: its kernel, its graphs and the model's place are stood in for.
    monkeypatch.setattr(kernels, "fused_attention", lambda _: FusedAttention("the reference", varlen_attention))
    monkeypatch.setattr(loading, "CudaCapturer", lambda device: EagerCapturer())
    monkeypatch.setattr(loading, "build", on_the_cpu)
    told: list[tuple[str, int, int]] = []
    launchers: list[torch.device] = []
    monkeypatch.setattr(loading, "launcher_on", launchers.append)
    config = config_for(tmp_path).model_copy(update={"cuda_graphs": cuda_graphs})
    on_cuda = replace(loaded, device=torch.device("cuda"), dtype=torch.bfloat16)
    runner = loading.build_runner(role, on_cuda, config, lambda *stage: told.append(stage))
    assert runner.pool.num_pages == 4
    assert launchers == ([on_cuda.device] if role == "drafter" else [])
    graphs_told = f"{10 if cuda_graphs else 0} CUDA graphs"
    assert told[-1] == (f"attention by varlen (the reference), {graphs_told}{told_of_drafts}", 1, 1)
    assert (("graphs", 10, 10) in told) == cuda_graphs
