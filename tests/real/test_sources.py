"""With a real model: whatever drafts come from, the text is what transformers' ``generate`` writes."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.gates import Gate
from specgate.types import DraftMethod, SamplingParams, Verification
from tests.real.pair import MAX_TOKENS, TARGET, generated, prompts, tokenizer
from tests.support.orchestrating import connected, expect_texts, run_all
from tests.support.services import Service, copying_and_skipping, running

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

GREEDY, NOISY = SamplingParams(temperature=0.0), SamplingParams(temperature=0.8, top_p=0.9)
COPY = [{"role": "user", "content": "Repeat this list three times: red, green, blue, red, green, blue."}]
NUM_CHATS, AT_ONCE = 4, 4
METHODS = {
    "suffix": {DraftMethod.SUFFIX},
    "layer-skip": {DraftMethod.LAYER_SKIP},
}
GATES = ((4, Gate.NONE), (None, Gate.AUTO))
"""γ and gate."""


@pytest.fixture(scope="module")
def both(folders: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Service], Service]]:
    """A drafter of every method, and the verifier."""
    folder, skip = tmp_path_factory.mktemp("skip"), {"num_layers": 30, "attention": [10, 12, 14], "mlp": [12, 16]}
    with (
        copying_and_skipping(folder, TARGET, skip, ahead=8) as drafters,
        running("verifier", TARGET) as verifier,
    ):
        yield drafters, verifier


def chats() -> list[tuple[int, ...]]:
    return [tokenizer().encode_chat(COPY), *prompts()[: NUM_CHATS - 1]]


@pytest.mark.parametrize("method", METHODS)
async def test_greedy_is_what_transformers_generates(both: tuple[dict[str, Service], Service], method: str) -> None:
    drafters, verifier = both
    expected, accepted_by = [generated(ids) for ids in chats()], Counter[DraftMethod]()
    for gamma, gate in GATES:
        requests = [GenerationRequest(ids, GREEDY, MAX_TOKENS, gamma=gamma, gate=gate) for ids in chats()]
        async with connected([drafters[method]], [verifier], tokenizer=TARGET) as orchestrator:
            generations = await run_all(orchestrator, requests, AT_ONCE)
        expect_texts(f"{method}, {gate}", generations, expected, most_excused=1)
        for one in generations:
            accepted_by.update(one.stats.accepted_by)
        assert all(one.stats.drafter_failures == 0 for one in generations)
    assert {method for method, count in accepted_by.items() if count} == METHODS[method]


@pytest.mark.parametrize("method", METHODS)
async def test_a_seeded_text_is_the_targets_and_rejection_takes_drafts(
    both: tuple[dict[str, Service], Service], method: str
) -> None:
    drafters, verifier = both
    alone = [GenerationRequest(ids, NOISY, 32, seed, gamma=0) for seed, ids in enumerate(chats())]
    async with connected([drafters[method]], [verifier], tokenizer=TARGET) as orchestrator:
        expected = [one.token_ids for one in await run_all(orchestrator, alone, AT_ONCE)]
        for gamma, gate in GATES:
            requests = [replace(one, gamma=gamma, gate=gate) for one in alone]
            generations = await run_all(orchestrator, requests, AT_ONCE)
            expect_texts(f"{method}, {gate}", generations, expected)
        rejecting = [
            replace(one, gamma=4, gate=Gate.NONE, verification=Verification.REJECTION, sampling=NOISY) for one in alone
        ]
        generations = await run_all(orchestrator, rejecting, AT_ONCE)
    assert sum(one.stats.accepted for one in generations) > 0
