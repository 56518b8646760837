"""Running drafts change when tokens come, and nothing else, however far away the services are."""

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, NamedTuple, cast

import pytest

from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.policy.auto.learner import Learner
from specgate.types import Gate, Grammar, GrammarKind, SamplingParams
from specgate_lab.network.delay_proxy import DelayProxy
from tests.support.orchestrating import connected, expect_texts, run_all
from tests.support.running_policy import AlwaysRunning
from tests.support.services import HELD_OUT_PROMPTS, PAIR, Service

GREEDY = SamplingParams(temperature=0.0)
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"sampling": GREEDY, "logprobs": 2},
    "temperature 1": {"sampling": SamplingParams(temperature=1.0)},
    "penalties": {
        "sampling": SamplingParams(temperature=0.8, repetition_penalty=1.2, presence_penalty=0.5, min_p=0.05)
    },
    "grammar": {"sampling": GREEDY, "grammar": Grammar(GrammarKind.REGEX, "( [a-z]{1,6},){8,12}")},
}
POLICIES = [AlwaysRunning(1, 4), AlwaysRunning(4, 16), AlwaysRunning(8, 64, solo_below=0.5, run_tokens=1000)]


class Place(NamedTuple):
    endpoint: str


@pytest.mark.parametrize("away_ms", [0, 6])
@pytest.mark.parametrize("kind", REQUESTS)
async def test_the_text_is_that_of_the_target_alone(
    drafter: Service, verifier: Service, kind: str, away_ms: int
) -> None:
    tokenizer = TextTokenizer.load(str(PAIR / "target"))
    assert tokenizer is not None
    prompts = [tuple(tokenizer.encode(text)) for text in HELD_OUT_PROMPTS[:6]]
    fields = {"max_tokens": 64, "gamma": 0, **REQUESTS[kind]}
    alone = [GenerationRequest(ids, seed=seed, **fields) for seed, ids in enumerate(prompts)]
    asked = [replace(one, gamma=None, gate=Gate.AUTO) for one in alone]
    async with AsyncExitStack() as stack:
        places = []
        for service in (drafter, verifier):
            proxy = DelayProxy(service.endpoint, away_ms / 2000)
            places.append(Place(await proxy.start()))
            stack.push_async_callback(proxy.stop)
        orchestrator = await stack.enter_async_context(connected(places[:1], places[1:]))
        expected = [one.token_ids for one in await run_all(orchestrator, alone)]
        learner, accepted = orchestrator.learner, 0
        for policy in POLICIES:
            orchestrator.learner = cast(Learner, policy)
            generations = await run_all(orchestrator, asked)
            expect_texts(str(policy), generations, expected)
            accepted += sum(one.stats.accepted for one in generations)
            assert sum(one.stats.drafter_failures + one.stats.verifier_failovers for one in generations) == 0
        assert accepted > 0 or away_ms
        orchestrator.learner = learner
        expect_texts("auto", await run_all(orchestrator, asked), expected)
