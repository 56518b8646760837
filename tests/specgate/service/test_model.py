"""A session's place is free again only when its pages are."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from specgate import cpu_library
from specgate.cpu_library import InstructionSet
from specgate.runtime.engine.engine import Engine
from specgate.runtime.engine.self_check import prepare
from specgate.service.leases import LeaseBook
from specgate.service.model import ServedModel
from specgate.types import SamplingParams, SessionSpec, Verification
from tests.support.models import load_float32, quiet, write_llama, write_model
from verifier_svc.verifier import VerifySession

KV_TOKENS = 512
"""One page, and so one session."""


@pytest.fixture
def model(tmp_path: Path) -> Iterator[ServedModel]:
    loaded = load_float32(write_llama(tmp_path))
    engine = Engine(prepare(loaded, KV_TOKENS, KV_TOKENS, quiet))
    engine.start()
    yield ServedModel("verifier", loaded, engine, max_sessions=1)
    engine.stop()


def make_spec(lease_token: str = "") -> SessionSpec:
    return SessionSpec(
        (1, 2, 3), SamplingParams(), 7, Verification.SHARED_NOISE, KV_TOKENS - 3, vocab_size=64, lease_token=lease_token
    )


@pytest.mark.parametrize(("model_type", "packs"), [("llama", True), ("llama", False), ("gpt2", True)])
def test_a_model_says_whether_a_row_depends_on_who_shares_its_forward(
    tmp_path: Path, model_type: str, packs: bool
) -> None:
    runner = prepare(load_float32(write_model(tmp_path, model_type)), KV_TOKENS, KV_TOKENS, quiet, packs=packs)
    info = ServedModel("verifier", runner.loaded, Engine(runner), max_sessions=1).info()
    one_call = packs and model_type == "llama" and cpu_library.instruction_set() is not InstructionSet.NONE
    assert info.batch_invariant == one_call


async def test_who_gets_the_place_next_finds_the_pages_free(model: ServedModel) -> None:
    for _ in range(200):
        async with model.open(make_spec(), VerifySession) as session:
            await model.engine.run(session.prefill())
            assert model.info().free_kv_tokens == 0


@pytest.mark.parametrize("cancelled", [False, True])
async def test_the_place_and_the_lease_are_kept_until_the_pages_are_free(model: ServedModel, cancelled: bool) -> None:
    leases = LeaseBook()
    leased = ServedModel("verifier", model.loaded, model.engine, max_sessions=1, leases=leases)
    opened, may_close, forward_ends = asyncio.Event(), asyncio.Event(), threading.Event()

    async def session(token: str) -> None:
        async with leased.open(make_spec(token), VerifySession):
            opened.set()
            await may_close.wait()

    with leases.issued() as lease:
        running = asyncio.create_task(session(lease.token))
        await opened.wait()
        # The engine's thread is busy, as with a forward.
        leased.engine.post(lambda: forward_ends.wait(30))
        # A second cancellation, of one that already waits, gets it no further than the first.
        for _ in range(2):
            if cancelled:
                running.cancel()
            may_close.set()
            await asyncio.wait({running}, timeout=0.05)
            assert (running.done(), leased.admission.num_sessions, lease.ended.is_set()) == (False, 1, False)
        forward_ends.set()
        await asyncio.wait({running})
    assert running.cancelled() == cancelled
    assert (leased.admission.num_sessions, lease.ended.is_set(), leased.info().free_kv_tokens) == (0, True, KV_TOKENS)


async def test_nobody_waits_for_an_engine_that_has_ended(model: ServedModel) -> None:
    async with model.open(make_spec(), VerifySession):
        model.engine.stop()
    assert model.admission.num_sessions == 0
