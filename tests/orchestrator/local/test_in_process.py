"""Both models in one process: the texts of two services, and nothing left of a session that ends."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from orchestrator.decode.request import Delta, GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.generation.orchestrator import Generation, Orchestrator
from orchestrator.local.in_process import InProcessPool, loaded
from orchestrator.local.launch import Capacity, open_pair
from orchestrator.local.local_services import LocalService
from orchestrator.local.pair_settings import GivenSettings, PairSettings
from orchestrator.policy.gates import Gate
from orchestrator.services.discovery import Dialer
from specgate.errors import EngineFailed, InvalidArgument
from specgate.types import DraftMethod, SamplingParams, Verification
from tests.support.grammars import regex
from tests.support.in_process import serving
from tests.support.models import Mix, write_llama
from tests.support.orchestrating import PATIENT, connected, expect_texts, run, run_all
from tests.support.patience import eventually, patience
from tests.support.services import HELD_OUT_PROMPTS, PAIR

GREEDY, NOISY = SamplingParams(temperature=0.0), SamplingParams(temperature=1.0)
FILTERED = SamplingParams(temperature=0.7, top_p=0.9, repetition_penalty=1.1)
PLAIN = {"cpu_graphs": False}
"""Loads in half the time."""
CAPACITY = Capacity(sessions=4, tokens_a_session=1024)
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"sampling": GREEDY, "gate": Gate.NONE, "gamma": 3},
    "greedy under a gate": {"sampling": GREEDY, "gate": Gate.TARGET_CONFIDENCE, "gamma": 4, "logprobs": 2},
    "shared noise": {"sampling": NOISY, "gate": Gate.DRAFT_CONFIDENCE, "gamma": 4, "seed": 7},
    "shared noise, filtered": {"sampling": FILTERED, "gate": Gate.NONE, "gamma": 2, "seed": 8},
    "rejection": {"sampling": NOISY, "gate": Gate.NONE, "gamma": 4, "seed": 9, "verification": Verification.REJECTION},
    "under a grammar": {"sampling": NOISY, "gate": Gate.NONE, "gamma": 4, "seed": 10, "grammar": regex("[a-z ]+")},
}


@asynccontextmanager
async def bundled_pair() -> AsyncIterator[Orchestrator]:
    """As a command has it."""
    models = PairSettings(in_process=True, service=GivenSettings(PLAIN))
    opening = open_pair(models, with_draft=True, capacity=CAPACITY, log=Console(quiet=True), timeouts=PATIENT)
    async with opening as pair:
        yield pair.orchestrator


def outcome(generation: Generation) -> tuple[Any, ...]:
    stats = generation.stats
    return generation.token_ids, generation.text, stats.drafted, stats.accepted, stats.solo_tokens, stats.rounds


async def test_what_two_services_write_is_written_here() -> None:
    ids = TextTokenizer.load(str(PAIR / "target")).encode(HELD_OUT_PROMPTS[0])
    requests = [GenerationRequest(tuple(ids), max_tokens=24, **fields) for fields in REQUESTS.values()]
    async with (
        serving("drafter", PAIR / "draft", run_ahead=0, **PLAIN) as drafter,
        serving("verifier", PAIR / "target", **PLAIN) as verifier,
        connected([drafter], [verifier]) as orchestrator,
    ):
        expected = [outcome(await run(orchestrator, request)) for request in requests]
        assert all(num_drafted > 0 for _, _, num_drafted, *_ in expected)
    async with bundled_pair() as orchestrator:
        assert [outcome(await run(orchestrator, request)) for request in requests] == expected
        with pytest.raises(InvalidArgument, match=r"^grammar\.regex: "):
            await run(orchestrator, replace(requests[0], grammar=regex("(a")))
        assert orchestrator.draft_info is not None
        assert (orchestrator.draft_info.role, orchestrator.target_info.role) == ("drafter", "verifier")


class Here:
    """A tiny pair in this process, and the ``ModelRunner`` of each."""

    def __init__(self) -> None:
        self.runners: list[Any] = []
        self.dialer: Dialer
        self.orchestrator: Orchestrator

    @property
    def verifier(self) -> Any:
        return self.runners[0]

    @property
    def drafter(self) -> Any:
        return self.runners[1]

    async def expect_nothing_left(self) -> None:
        lease = await InProcessPool().lease()
        for role, runner in zip(("verifier", "drafter"), self.runners, strict=False):
            assert (await self.dialer.model_info(lease, role)).active_sessions == 0
            assert runner.pool.num_free == runner.pool.num_pages
            runner.pool.check_integrity()


@asynccontextmanager
async def tiny_pair(folder: Path, method: DraftMethod = DraftMethod.MODEL) -> AsyncIterator[Here]:
    settings = {"max_sessions": 8, "kv_tokens": 4096, **PLAIN}
    target = write_llama(folder / "target", layers=2, seed=1)
    draft = str(write_llama(folder / "draft", layers=2, seed=2, mix=Mix(1, 0.97))) if method.has_model else ""
    services = [
        LocalService.of("verifier", str(target), **settings),
        LocalService.of("drafter", draft, run_ahead=0, method=method, **settings),
    ]
    found = Here()
    async with loaded(services, lambda *_: None, lambda _: None) as found.dialer:
        # What no client sees: faults are put into runners, and pages counted. Copies have none.
        engines = [found.dialer._served[role].engine for role in ("verifier", "drafter")]
        found.runners = [engine.runner for engine in engines if hasattr(engine, "runner")]
        pools = InProcessPool(), InProcessPool()
        async with await Orchestrator.connect(*pools, timeouts=PATIENT, dialer=found.dialer) as found.orchestrator:
            yield found


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Here]:
    async with tiny_pair(tmp_path) as pair:
        yield pair


async def test_copies_are_taken(tmp_path: Path) -> None:
    """Without a draft model ``auto`` asks for none: they are announced, and the target goes on with them."""
    like = partial(GenerationRequest, (1, 2, 3, 4) * 8, GREEDY, max_tokens=100)
    async with tiny_pair(tmp_path, DraftMethod.SUFFIX) as pair:
        alone = await run(pair.orchestrator, like(gamma=0))
        requests = [like(gamma=4, gate=Gate.NONE), like(gate=Gate.AUTO)]
        texts = await run_all(pair.orchestrator, requests, concurrency=1)
        expect_texts("suffix", texts, [alone.token_ids] * 2)
        # Under auto a copy must be told within a forward, which a busy machine does not promise.
        assert texts[0].stats.accepted_by[DraftMethod.SUFFIX] > 0
        await pair.expect_nothing_left()


LONG = GenerationRequest((1, 2, 3, 4), GREEDY, max_tokens=400, gate=Gate.NONE, gamma=4)


@pytest.mark.parametrize("num_deltas", [0, 3])
async def test_a_request_that_is_cancelled_holds_nothing(here: Here, num_deltas: int) -> None:
    seen = asyncio.Event()

    async def read() -> None:
        count = 0
        async with here.orchestrator.generate(LONG) as generation:
            async for _ in generation:
                count += 1
                if count == num_deltas:
                    seen.set()

    tasks = [asyncio.create_task(read()) for _ in range(3)]
    if num_deltas:
        await seen.wait()
    else:
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    assert all(isinstance(one, asyncio.CancelledError) for one in await asyncio.gather(*tasks, return_exceptions=True))
    await here.expect_nothing_left()
    assert (await run(here.orchestrator, replace(LONG, max_tokens=40))).stats.completion_tokens == 40


async def test_a_request_that_is_closed_from_elsewhere_ends_at_once(here: Here) -> None:
    async with patience():
        generation = here.orchestrator.generate(LONG)
        reading = asyncio.create_task(_count(generation))
        await eventually(lambda: generation.stats.rounds)
        await generation.aclose()
        assert await reading < 400
    await here.expect_nothing_left()


async def _count(deltas: AsyncIterable[Delta]) -> int:
    return sum([len(delta.token_ids) async for delta in deltas])


def dies(*_: object) -> None:
    raise SystemExit


async def test_a_dead_verifier_is_told_and_nobody_hangs(here: Here) -> None:
    async with patience():
        generation = here.orchestrator.generate(LONG)
        deltas = aiter(generation)
        await anext(deltas)
        here.verifier.forward = dies
        with pytest.raises(EngineFailed):
            await _count(deltas)
        with pytest.raises(EngineFailed):
            await run(here.orchestrator, LONG)


async def test_without_its_drafter_the_target_goes_on(here: Here) -> None:
    shorter = replace(LONG, max_tokens=100)
    alone = await run(here.orchestrator, replace(shorter, gamma=0))
    here.drafter.forward = dies
    generation = await run(here.orchestrator, shorter)
    expect_texts("the drafter died", [generation], [alone.token_ids])
    assert generation.stats.drafter_failures > 0
