"""A pair on two running engines, as two services have it, in one process: the loop of ``tests.support.sessions``."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

from drafter_svc.drafter import DraftSession
from specgate.errors import KVCacheFull
from specgate.runtime.engine.engine import Engine
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.kv_pages import Copy, KVSequence, PagePool
from specgate.runtime.scheduler import Limits
from specgate.service.model import ServedModel
from specgate.service.served import S
from specgate.types import SessionSpec
from tests.support.equal_texts import expect_equal
from tests.support.sessions import DecodeLoop, Generation, Pair, Plan
from verifier_svc.verifier import VerifySession

MAX_SESSIONS = 64
RETRY_S = 0.002


class Counts(NamedTuple):
    """How often open sequences lost their pages, began with known ones, and how often rows were copied."""

    robbed: int = 0
    sharing: int = 0
    copies: int = 0


class CountingPool(PagePool):
    """Pages that tell whether it came to what a test is about."""

    counts = Counts()

    def _count(self, robbed: int = 0, sharing: int = 0, copies: int = 0) -> None:
        self.counts = Counts(*map(sum, zip(self.counts, (robbed, sharing, copies), strict=True)))

    def release(self, sequence: KVSequence, *, poisoned: bool = False) -> None:
        self._count(robbed=sequence.serial in self.sequences)
        super().release(sequence, poisoned=poisoned)

    def attach(self, sequence: KVSequence, limit: int) -> None:
        was_empty = not sequence.block_table
        super().attach(sequence, limit)
        self._count(sharing=was_empty and bool(sequence.block_table))

    def take_copies(self) -> list[Copy]:
        copies = super().take_copies()
        self._count(copies=len(copies))
        return copies


def counting_runner(served: ModelRunner, num_pages: int, page_size: int) -> ModelRunner:
    """Another runner of the same model and kernel, over pages that count; not for use at the same time."""
    runner = ModelRunner(served.loaded, num_pages * page_size, page_size, served.kernel)
    runner.pool = CountingPool(num_pages, page_size)
    return runner


class ServedPair(NamedTuple):
    """Two models in service."""

    target: ServedModel
    draft: ServedModel

    @property
    def runners(self) -> Pair:
        return Pair(self.target.engine.runner, self.draft.engine.runner)


@asynccontextmanager
async def served(
    target: ModelRunner, draft: ModelRunner, limits: Limits, *, chains: bool = False
) -> AsyncIterator[ServedPair]:
    """Run an engine for each of the two while the context lasts. ``chains``: of the drafter's, see ``Engine``."""
    pair = ServedPair(_model("verifier", target, limits), _model("drafter", draft, limits, chains=chains))
    for model in pair:
        model.engine.start()
    try:
        yield pair
    finally:
        for model in pair:
            model.engine.stop()


def _model(role: str, runner: ModelRunner, limits: Limits, *, chains: bool = False) -> ServedModel:
    return ServedModel(role, runner.loaded, Engine(runner, limits, chains=chains), MAX_SESSIONS)


async def decode_on(pair: ServedPair, spec: SessionSpec, plan: Plan, opened: asyncio.Barrier) -> Generation:
    """Open both sessions, as soon as there is room; decode once all parties of ``opened`` are that far."""
    async with AsyncExitStack() as stack:
        drafter = await _open(stack, pair.draft, spec, DraftSession)
        verifier = await _open(stack, pair.target, spec, VerifySession)
        await opened.wait()
        return await _run(pair, DecodeLoop(pair.runners, plan, drafter, verifier))


async def _open(stack: AsyncExitStack, model: ServedModel, spec: SessionSpec, make: Callable[..., S]) -> S:
    while True:
        try:
            return await stack.enter_async_context(model.open(spec, make))
        except KVCacheFull:
            await asyncio.sleep(RETRY_S)


async def _run(pair: ServedPair, loop: DecodeLoop) -> Generation:
    engines = {id(model.engine.runner): model.engine for model in pair}
    calls = loop.run()
    result: Any = None
    while True:
        try:
            runner, task = calls.send(result)
        except StopIteration as stop:
            return stop.value
        result = await engines[id(runner)].run(task)


def expect_same(
    name: str, generations: Sequence[Generation], expected: Sequence[Generation], *, most_excused: int = 0
) -> None:
    """Every text must be the same, but for so many that met a near tie; and drafts must have been accepted."""
    texts, others = ([one.token_ids for one in run] for run in (generations, expected))
    near_ties = [one.near_ties + other.near_ties for one, other in zip(generations, expected, strict=True)]
    expect_equal(name, texts, others, near_ties, most_excused=most_excused)
    assert sum(one.num_accepted for one in generations) > 20
