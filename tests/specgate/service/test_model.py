"""A session's place is free again only when its pages are."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from specgate.service.config import ServiceConfig
from specgate.service.leases import LeaseBook
from specgate.service.model import ServedModel
from specgate.service.replica import Replica
from specgate.types import SamplingParams, SessionSpec, Verification
from tests.support.models import write_llama
from verifier_svc.verifier import VerifySession

KV_TOKENS = 512
"""One page, and so one session."""


@pytest.fixture
async def model(tmp_path: Path) -> AsyncIterator[ServedModel]:
    config = ServiceConfig(
        model=str(write_llama(tmp_path)), device="cpu", threads=1, max_sessions=1, kv_tokens=KV_TOKENS
    )
    replica = Replica("verifier", config)
    await replica.start(lambda stage, done, total: None)
    yield replica._model
    await replica.drain()


def make_spec(lease_token: str = "") -> SessionSpec:
    return SessionSpec(
        (1, 2, 3), SamplingParams(), 7, Verification.SHARED_NOISE, KV_TOKENS - 3, vocab_size=64, lease_token=lease_token
    )


class Hold:
    """Keeps the engine's thread busy, as a forward does, until ``release``."""

    def __init__(self, model: ServedModel) -> None:
        self._may_end = threading.Event()
        self.ended = model.engine.post(self._wait)

    def _wait(self) -> None:
        self._may_end.wait(30)

    def release(self) -> None:
        self._may_end.set()


async def test_who_gets_the_place_next_finds_the_pages_free(model: ServedModel) -> None:
    for _ in range(200):
        async with model.open(make_spec(), VerifySession) as session:
            await model.engine.run(session.prefill())
            assert model.info().free_kv_tokens == 0


@pytest.mark.parametrize("cancelled", [False, True])
async def test_the_place_and_the_lease_are_kept_until_the_pages_are_free(model: ServedModel, cancelled: bool) -> None:
    leases = model._leases = LeaseBook()
    opened, may_close = asyncio.Event(), asyncio.Event()

    async def session(token: str) -> None:
        async with model.open(make_spec(token), VerifySession):
            opened.set()
            await may_close.wait()

    with leases.issued() as lease:
        running = asyncio.create_task(session(lease.token))
        await opened.wait()
        hold = Hold(model)
        # A second cancellation, of one that already waits, gets it no further than the first.
        for _ in range(2):
            if cancelled:
                running.cancel()
            may_close.set()
            await asyncio.wait({running}, timeout=0.05)
            assert (running.done(), model.num_sessions, lease.ended.is_set()) == (False, 1, False)
        hold.release()
        await asyncio.wait({running})
    assert running.cancelled() == cancelled
    assert (model.num_sessions, lease.ended.is_set(), model.info().free_kv_tokens) == (0, True, KV_TOKENS)


async def test_nobody_waits_for_an_engine_that_has_ended(model: ServedModel) -> None:
    async with model.open(make_spec(), VerifySession):
        model.engine.stop()
    assert model.num_sessions == 0
