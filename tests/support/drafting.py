"""Drafting sessions on one engine, and a runner on the CPU that drafts in one call, by whatever stands for a card."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from drafter_svc.drafter import DraftSession
from specgate.runtime.attention.reference import varlen_attention
from specgate.runtime.attention.varlen import VarlenKernel
from specgate.runtime.cuda.decoder.drafting import StackedDecoder, StepLauncher
from specgate.runtime.engine.draft_check import add_drafter, stack_decoder
from specgate.runtime.engine.engine import Engine
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.engine.self_check import prepare
from specgate.types import DraftRequest, Proposal
from tests.support.models import load_float32, quiet
from tests.support.sessions import VOCAB_SIZE, Ids, make_spec
from tests.support.tape import EagerCapturer
from tests.support.torch_decoder import TorchDecoder

GAMMA = 5
KV_TOKENS = 4096


class Drafting:
    """Sessions on one engine."""

    def __init__(self, runner: ModelRunner, engine: Engine) -> None:
        self.runner, self.engine = runner, engine

    async def session(self, **fields: Any) -> DraftSession:
        spec = make_spec(**{"max_tokens": 60, **fields})
        session = DraftSession(spec, self.runner.pool, VOCAB_SIZE, self.runner.loaded.context_length)
        await self.engine.run(session.warm())
        return session

    async def draft(self, session: DraftSession, number: int, committed: Ids = (), **terms: Any) -> Proposal:
        options = {"gamma": GAMMA, "stop_below": 0.0, **terms}
        request = DraftRequest(round=number, position=session.num_committed, token_ids=committed, **options)
        return await self.engine.run(session.draft(request))

    async def once(self, *, gamma: int = GAMMA, stop_below: float = 0.0, **fields: Any) -> Proposal:
        """Return the first proposal of a session of its own."""
        session = await self.session(**fields)
        proposal = await self.draft(session, 0, gamma=gamma, stop_below=stop_below)
        session.free()
        return proposal

    async def text(self, **fields: Any) -> list[Proposal]:
        """Return the proposals of four rounds: all of a draft was accepted, two of its tokens, and none of a dozen."""
        session = await self.session(**fields)
        found = [await self.draft(session, 0)]
        found.append(await self.draft(session, 1, (*found[0].draft_token_ids, 3)))
        found.append(await self.draft(session, 2, (*found[1].draft_token_ids[:2], 7)))
        found.append(await self.draft(session, 3, tuple(range(12))))
        session.free()
        return found


@asynccontextmanager
async def drafting(runner: ModelRunner, *, chains: bool = True) -> AsyncIterator[Drafting]:
    engine = Engine(runner, chains=chains)
    engine.start()
    try:
        yield Drafting(runner, engine)
    finally:
        engine.stop()
        runner.pool.check_integrity()


def slow_without(runner: ModelRunner) -> float:
    """Say that a draft in one call is faster than forwards in a row, which it is not here."""
    return 2.0 if runner.drafter is None else 1.0


def stacked(folder: Path, page_size: int = 64) -> tuple[ModelRunner, StackedDecoder]:
    """Return a runner that drafts by forwards in a row, and its decoder."""
    loaded = load_float32(folder)
    decoder = stack_decoder(loaded, page_size)
    assert decoder
    kernel = VarlenKernel(varlen_attention, loaded.context_length)
    runner = prepare(loaded, KV_TOKENS, page_size, quiet, [kernel], packs=False)
    runner.resize(KV_TOKENS)
    return runner, decoder


def runner_with(folder: Path, launcher: StepLauncher, page_size: int = 64) -> ModelRunner:
    """Return a runner that drafts in one call."""
    runner, decoder = stacked(folder, page_size)
    add_drafter(runner, decoder, launcher, EagerCapturer(), quiet, slow_without)
    assert runner.drafter
    return runner


def by_torch(folder: Path) -> tuple[ModelRunner, TorchDecoder]:
    """Return a runner that drafts by torch, and what drafts, which has drafted nothing that is told."""
    decoder = TorchDecoder()
    runner = runner_with(folder, StepLauncher("torch", decoder))
    decoder.sizes.clear()
    return runner, decoder
