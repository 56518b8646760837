"""Running requests over real services, for tests."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Protocol

from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.session import OnRecord
from orchestrator.decode.text import TextTokenizer
from orchestrator.generation.orchestrator import Generation, Orchestrator
from orchestrator.services.links import GrpcDialer, WrapCall
from orchestrator.services.pool import StaticPool
from orchestrator.services.streams import ChannelCache
from orchestrator.services.timeouts import Timeouts
from specgate.types import RoundRecord
from tests.support.equal_texts import Text, expect_equal
from tests.support.patience import PATIENCE_S
from tests.support.services import PAIR


class HasEndpoint(Protocol):
    """A service, or whatever tells where one is."""

    @property
    def endpoint(self) -> str: ...


Cli = Callable[..., tuple[int, str, str]]
"""Runs a command line; returns exit code, standard output and standard error."""
PATIENT = Timeouts(open_s=PATIENCE_S, draft_floor_s=PATIENCE_S, verdict_floor_s=PATIENCE_S)
"""A busy machine is no lost drafter: every round is to have its proposal."""


@contextlib.asynccontextmanager
async def connected(
    drafters: Sequence[HasEndpoint],
    verifiers: Sequence[HasEndpoint],
    timeouts: Timeouts = PATIENT,
    wrap_call: WrapCall | None = None,
    tokenizer: Path | None = PAIR / "target",
) -> AsyncIterator[Orchestrator]:
    """An orchestrator over these services, with the bundled pair's tokenizer, or that of another folder, or none."""
    async with await Orchestrator.connect(
        StaticPool([service.endpoint for service in verifiers]),
        StaticPool([service.endpoint for service in drafters]) if drafters else None,
        TextTokenizer.load(str(tokenizer)) if tokenizer is not None else None,
        timeouts=timeouts,
        wrap_call=wrap_call,
    ) as orchestrator:
        yield orchestrator


@contextlib.asynccontextmanager
async def dialing(open_timeout_s: float = PATIENCE_S, wrap_call: WrapCall | None = None) -> AsyncIterator[GrpcDialer]:
    """Yield what opens sessions over channels of its own."""
    channels = ChannelCache()
    try:
        yield GrpcDialer(channels, open_timeout_s, wrap_call)
    finally:
        await channels.close()


async def run(orchestrator: Orchestrator, request: GenerationRequest, on_record: Sequence[OnRecord] = ()) -> Generation:
    """Run one request to its end."""
    generation = orchestrator.generate(request, on_record=on_record)
    async for _ in generation:
        pass
    return generation


async def run_all(
    orchestrator: Orchestrator,
    requests: Sequence[GenerationRequest],
    concurrency: int = 4,
    on_record: Sequence[OnRecord] = (),
) -> list[Generation]:
    """Run all requests, a few at a time; results in order."""
    slots = asyncio.Semaphore(concurrency)

    async def one(request: GenerationRequest) -> Generation:
        async with slots:
            return await run(orchestrator, request, on_record)

    return list(await asyncio.gather(*map(one, requests)))


def expect_texts(
    name: str, generations: Sequence[Generation], expected: Sequence[Text], *, most_excused: int = 0
) -> None:
    """Every text must be as expected, but for so many that met a near tie."""
    texts, near_ties = [one.token_ids for one in generations], [one.stats.near_ties for one in generations]
    expect_equal(name, texts, expected, near_ties, most_excused=most_excused)


class Widths(Counter[int]):
    """Verdicts by the number of sessions that shared their forward; ``on_record`` subscribes to requests."""

    def on_record(self, record: RoundRecord) -> None:
        self[record.verdict.batch_sessions] += 1


def num_prepared(generations: Sequence[Generation]) -> int:
    """In how many rounds the whole proposal was there before it was asked for."""
    return sum(sum(generation.stats.prepared) for generation in generations)
