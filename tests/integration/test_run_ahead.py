"""Run-ahead over real services: proposals are there sooner, and the text is the same; also when the drafter is lost."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.generation.orchestrator import Generation
from orchestrator.policy.gates import Gate
from specgate.types import SamplingParams, Verification
from tests.support import guessing_drafter
from tests.support.orchestrating import connected, expect_texts, num_prepared, run, run_all
from tests.support.services import HELD_OUT_PROMPTS, PAIR, Service, running

MAX_TOKENS = 40
SAMPLINGS = {"greedy": SamplingParams(temperature=0.0), "temperature 1": SamplingParams()}


@pytest.fixture(scope="module")
def drafter() -> Iterator[Service]:
    with running("drafter", PAIR / "draft", module=guessing_drafter.MODULE) as service:
        yield service


@pytest.fixture(scope="module")
def idle_drafter() -> Iterator[Service]:
    """A drafter that waits for every verdict."""
    with running("drafter", PAIR / "draft", "--run-ahead", "0") as service:
        yield service


def requests(sampling: SamplingParams, verification: Verification) -> list[GenerationRequest]:
    tokenizer = TextTokenizer.load(str(PAIR / "target"))
    return [
        GenerationRequest(ids, sampling, MAX_TOKENS, seed=20 + i, gamma=1 + i, gate=gate, verification=verification)
        for i, ids in enumerate(tuple(tokenizer.encode(text)) for text in HELD_OUT_PROMPTS[:3])
        for gate in (Gate.NONE, Gate.TARGET_CONFIDENCE, Gate.AUTO)
    ]


async def both(
    idle_drafter: Service, drafter: Service, verifier: Service, asked: list[GenerationRequest]
) -> tuple[list[Generation], list[Generation]]:
    """The generations without run-ahead, and with it."""
    async with connected([idle_drafter], [verifier]) as orchestrator:
        without = await run_all(orchestrator, asked, concurrency=3)
    async with connected([drafter], [verifier]) as orchestrator:
        return without, await run_all(orchestrator, asked, concurrency=1)


def num_announced(generations: list[Generation]) -> int:
    return sum(
        prepared and draft_us == 0
        for generation in generations
        for prepared, draft_us in zip(generation.stats.prepared, generation.stats.draft_us, strict=True)
    )


@pytest.mark.parametrize("verification", Verification)
@pytest.mark.parametrize("sampling", SAMPLINGS)
async def test_proposals_are_prepared_and_the_text_stays(
    sampling: str, verification: Verification, drafter: Service, idle_drafter: Service, verifier: Service
) -> None:
    asked = requests(SAMPLINGS[sampling], verification)
    without, ahead = await both(idle_drafter, drafter, verifier, asked)
    assert num_prepared(without) == 0
    assert num_prepared(ahead) > 0
    # What was announced in time took no time; in rejection mode above temperature 0 nothing is announced.
    announced = verification is Verification.SHARED_NOISE or sampling == "greedy"
    assert (num_announced(ahead) > 0) == announced
    if announced:
        expect_texts("run-ahead", ahead, [one.token_ids for one in without])


@pytest.mark.parametrize("sampling", SAMPLINGS)
async def test_the_target_goes_on_by_itself_and_the_text_stays(
    sampling: str, drafter: Service, idle_drafter: Service, slow_verifier: Service
) -> None:
    asked = requests(SAMPLINGS[sampling], Verification.SHARED_NOISE)
    without, ahead = await both(idle_drafter, drafter, slow_verifier, asked)
    assert not any(generation.stats.followed for generation in without)
    gates = {request.gate for request, generation in zip(asked, ahead, strict=True) if generation.stats.followed}
    assert gates >= {Gate.NONE, Gate.TARGET_CONFIDENCE}
    # Of those that were prepared most were told in time.
    assert sum(generation.stats.followed for generation in ahead) > num_prepared(ahead) / 2
    expect_texts("followed", ahead, [one.token_ids for one in without])


@pytest.fixture(scope="module")
def mortal_drafter() -> Iterator[Service]:
    with running("drafter", PAIR / "draft", "--run-ahead", "8") as drafter:
        yield drafter


@pytest.mark.parametrize("verification", [Verification.SHARED_NOISE, Verification.REJECTION])
async def test_a_drafter_that_is_killed_while_it_guesses_is_not_missed(
    verification: Verification, mortal_drafter: Service, verifier: Service
) -> None:
    """And is asked again once it is back."""
    first = requests(SAMPLINGS["temperature 1"], verification)[0]
    request = replace(first, gamma=4, gate=Gate.NONE, max_tokens=300, ignore_eos=True)
    async with connected([mortal_drafter], [verifier]) as orchestrator:
        alone = await run(orchestrator, replace(request, gamma=0))
        generation, drafted_before = orchestrator.generate(request), None
        async for _ in generation:
            if drafted_before is not None:
                # A slow reader: the drafter is asked again long before the end.
                await asyncio.sleep(0.02)
            elif len(generation.token_ids) > 20:
                drafted_before = generation.stats.drafted
                await asyncio.to_thread(mortal_drafter.kill)
                await asyncio.to_thread(mortal_drafter.start)
    assert len(generation.token_ids) == 300
    assert drafted_before
    assert generation.stats.drafter_failures == 1
    assert generation.stats.drafted > drafted_before
    if verification is Verification.SHARED_NOISE:
        expect_texts("killed", [generation], [alone.token_ids])
