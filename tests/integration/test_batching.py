"""Whoever else is served: sixteen requests of all kinds at once get the texts that each of them gets alone."""

import asyncio
from collections.abc import Iterator

import pytest

from orchestrator.decode.ports import Lease
from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.generation.orchestrator import Generation, Orchestrator
from orchestrator.policy.gates import Gate
from specgate.types import ModelInfo
from tests.support.mixed import SAMPLINGS, sharing_prompts
from tests.support.orchestrating import Widths, connected, dialing, expect_texts, run, run_all
from tests.support.services import HELD_OUT_PROMPTS, PAIR, Service, running

PROMPT_LENGTHS = (600, 5, 420, 37, 250, 600, 12, 380, 90, 512, 5, 310, 150, 64, 450, 21)
ROUNDS = [
    pytest.param(1, id="quick"),
    pytest.param(3, id="full", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
]
INTERVALS_S = (0.0, 0.15)
"""Between two arrivals: all at once, and so that the first ones decode while the prompts of the last ones are run."""
IDLE_S = 1.0
"""Several times what an idle engine waits until it looks for damage."""


# Pages are as long as the context here, 1024 tokens.
PAGES_FOR_ALL = ("--kv-tokens", str(18 * 1024))
"""For sixteen sessions; the next sixteen then reuse the pages of the last ones."""
PAGES_FOR_ONE = ("--kv-tokens", str(2 * 1024))
"""For a session, and one that has not quite ended."""


@pytest.fixture(scope="module")
def services() -> Iterator[tuple[Service, Service, Service]]:
    """A drafter and a verifier, and another process of the same target, for one request at a time."""
    with (
        running("drafter", PAIR / "draft", *PAGES_FOR_ALL) as drafter,
        running("verifier", PAIR / "target", *PAGES_FOR_ALL) as verifier,
        running("verifier", PAIR / "target", *PAGES_FOR_ONE) as lone_verifier,
    ):
        yield drafter, verifier, lone_verifier


def mixed_requests(round_index: int) -> list[GenerationRequest]:
    tokenizer = TextTokenizer.load(str(PAIR / "target"))
    stream = [token_id for text in HELD_OUT_PROMPTS for token_id in tokenizer.encode(text)]
    turned = stream[round_index * 700 :] + stream[: round_index * 700]
    samplings, gates = list(SAMPLINGS.values()), list(Gate)
    return [
        GenerationRequest(
            prompt,
            samplings[(index + round_index) % len(samplings)],
            max_tokens=16 + 37 * index % 81,
            seed=100 * round_index + index,
            stop=("\n\n", "return") if index % 5 == 0 else (),
            ignore_eos=index % 3 > 0,
            gamma=(5 * index + round_index) % 9,
            gate=gates[(index // 2 + round_index) % len(gates)],
        )
        for index, prompt in enumerate(sharing_prompts(turned, PROMPT_LENGTHS, num_groups=4))
    ]


async def together(
    orchestrator: Orchestrator, requests: list[GenerationRequest], interval_s: float
) -> tuple[list[Generation], Widths]:
    """Run all requests, each of which comes a while after the one before it; results in order."""
    widths = Widths()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for request in requests:
            tasks.append(group.create_task(run(orchestrator, request, [widths.on_record])))
            await asyncio.sleep(interval_s)
    return [task.result() for task in tasks], widths


async def model_infos(drafter: Service, verifier: Service) -> list[ModelInfo]:
    async with dialing() as dialer:
        services = (("drafter", drafter), ("verifier", verifier))
        return [await dialer.model_info(Lease(service.endpoint), role) for role, service in services]


async def expect_all_free(drafter: Service, verifier: Service, boot_ids: list[str]) -> None:
    """No session and no page is held, and the engines, which look for damage when they are idle, live on."""
    while any(info.active_sessions for info in await model_infos(drafter, verifier)):  # noqa: ASYNC110 - there is nothing that could tell us
        await asyncio.sleep(0.05)
    await asyncio.sleep(IDLE_S)
    infos = await model_infos(drafter, verifier)
    assert [(info.active_sessions, info.free_kv_tokens) for info in infos] == [(0, info.kv_tokens) for info in infos]
    assert [info.boot_id for info in infos] == boot_ids


def expect_same(name: str, generations: list[Generation], expected: list[Generation]) -> None:
    expect_texts(name, generations, [one.token_ids for one in expected])
    for one, other in zip(generations, expected, strict=True):
        assert (one.text, one.finish_reason) == (other.text, other.finish_reason)


def expect_batched(generations: list[Generation], widths: Widths, sharing: int) -> None:
    """Forwards were shared by so many, drafts were asked for and used: else the equality would mean little."""
    print(f"sessions a forward: {dict(sorted(widths.items()))}")
    assert max(widths) >= sharing
    assert sum(g.stats.accepted for g in generations) > 100
    assert sum(g.stats.solo_tokens for g in generations) > 0
    assert [g.stats.failures_survived for g in generations] == [0] * len(generations)


@pytest.mark.parametrize("num_rounds", ROUNDS)
async def test_sixteen_at_once_write_what_each_writes_alone(
    services: tuple[Service, Service, Service], num_rounds: int
) -> None:
    drafter, verifier, lone_verifier = services
    boot_ids = [info.boot_id for info in await model_infos(drafter, verifier)]
    for round_index in range(num_rounds):
        requests, results = mixed_requests(round_index), []
        async with connected([drafter], [verifier]) as orchestrator:
            for interval_s in INTERVALS_S:
                results.append(await together(orchestrator, requests, interval_s))
                await expect_all_free(drafter, verifier, boot_ids)
        # Afterwards: the services know nothing of these prompts when all of them come at once.
        # Each finds the page of the one behind it, and no prefix of its own in it.
        async with connected([drafter], [lone_verifier]) as orchestrator:
            expected = (await run_all(orchestrator, requests[::-1], concurrency=1))[::-1]
        for interval_s, (generations, widths) in zip(INTERVALS_S, results, strict=True):
            expect_same(f"round {round_index}, one every {interval_s} s", generations, expected)
            # Of those that come one by one, a quick machine has ended some before others begin.
            expect_batched(generations, widths, sharing=2 if interval_s else 4)
