"""Whatever drafts come from, the text is the target's own, and who drafted a token is told."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.policy.gates import Gate
from specgate.runtime import short_head
from specgate.types import DraftMethod, SamplingParams, Verification
from tests.support import guessing_drafter
from tests.support.orchestrating import connected, expect_texts, num_prepared, run_all
from tests.support.services import HELD_OUT_PROMPTS, PAIR, Service, copying_and_skipping, running

GREEDY, NOISY = SamplingParams(temperature=0.0), SamplingParams(temperature=0.7, top_p=0.9)
COPY = "".join(HELD_OUT_PROMPTS[:2] * 2)
"""A text that a model is likely to go on with as it went on before."""
SOURCES = {
    "suffix": {DraftMethod.SUFFIX},
    "layer-skip": {DraftMethod.LAYER_SKIP},
    "short head": {DraftMethod.MODEL},
}
SHORT_HEAD = 512
GATES = [(4, Gate.NONE), (5, Gate.TARGET_CONFIDENCE), (None, Gate.AUTO)]
SIZES = [
    pytest.param(5, 48, id="quick"),
    pytest.param(50, 128, id="full", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
]


@pytest.fixture(scope="module")
def drafters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Service]]:
    folder, skip = tmp_path_factory.mktemp("skip"), {"num_layers": 12, "attention": [3], "mlp": [2, 3]}
    short = Path(shutil.copytree(PAIR / "draft", folder / "short"))
    (short / short_head.FILE).write_text(json.dumps({"token_ids": list(range(SHORT_HEAD))}))
    with (
        copying_and_skipping(folder, PAIR / "target", skip, ahead=16) as drafters,
        running("drafter", short, "--run-ahead", "16", module=guessing_drafter.MODULE) as shortened,
    ):
        yield {**drafters, "short head": shortened}


def prompts(count: int) -> list[tuple[int, ...]]:
    tokenizer = TextTokenizer.load(str(PAIR / "target"))
    return [tuple(tokenizer.encode(text)) for text in [COPY, *HELD_OUT_PROMPTS[: count - 1]]]


@pytest.mark.parametrize(("num_prompts", "max_tokens"), SIZES)
@pytest.mark.parametrize("sampling", [GREEDY, NOISY], ids=["greedy", "shared noise"])
@pytest.mark.parametrize("method", SOURCES)
async def test_the_text_is_that_of_the_target_alone(
    drafters: dict[str, Service],
    verifier: Service,
    slow_verifier: Service,
    method: str,
    sampling: SamplingParams,
    num_prompts: int,
    max_tokens: int,
) -> None:
    ids = prompts(num_prompts)
    alone = [GenerationRequest(one, sampling, max_tokens, seed=seed, gamma=0) for seed, one in enumerate(ids)]
    async with connected([drafters[method]], [verifier]) as orchestrator:
        expected = [one.token_ids for one in await run_all(orchestrator, alone)]
    accepted_by = Counter[DraftMethod]()
    for gamma, gate in GATES:
        # One that has learned nothing yet drafts, however slow this machine's drafts are.
        async with connected([drafters[method]], [verifier]) as orchestrator:
            requests = [replace(one, gamma=gamma, gate=gate) for one in alone]
            generations = await run_all(orchestrator, requests)
            for one in generations:
                accepted_by.update(one.stats.accepted_by)
        expect_texts(f"{method}, gamma {gamma} gate {gate}", generations, expected)
        assert sum(one.stats.drafter_failures for one in generations) == 0
    assert {method for method, count in accepted_by.items() if count} == SOURCES[method]
    if method == "short head":
        async with connected([drafters[method]], [slow_verifier]) as orchestrator:
            ahead = await run_all(orchestrator, [replace(alone[0], gamma=4, gate=Gate.NONE)])
        expect_texts("ahead", ahead, expected[:1])
        # The layers that are left may take as long as the target: whether they are ready in time is not promised.
        # Copies are asked for, or run.
        assert num_prepared(ahead) > 0


@pytest.mark.parametrize("method", SOURCES)
async def test_rejection_takes_drafts_of_every_source(
    drafters: dict[str, Service], verifier: Service, method: str
) -> None:
    """(The law of what comes of it: ``test_rejection_law``.)"""
    ids, accepted = prompts(4), 0
    sampling, rejection = SamplingParams(temperature=0.3), Verification.REJECTION
    for gate in (Gate.NONE, Gate.AUTO):
        requests = [GenerationRequest(one, sampling, 48, gamma=4, gate=gate, verification=rejection) for one in ids]
        async with connected([drafters[method]], [verifier]) as orchestrator:
            generations = await run_all(orchestrator, requests)
        accepted += sum(one.stats.accepted for one in generations)
        assert sum(one.stats.drafter_failures for one in generations) == 0
        assert all(one.stats.completion_tokens == 48 or one.finish_reason == "stop" for one in generations)
    # (``auto`` may leave it to the target.)
    assert accepted > 0
