"""The real model as a GGUF file: its tokenizer is the folder's, and its text the same with drafts and without."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.gates import Gate
from scripts import real_model
from specgate.tokenizer import fingerprint, load_tokenizer
from specgate.types import SamplingParams
from tests.real import pair
from tests.real.chats import CHATS
from tests.support.orchestrating import connected, expect_texts, run_all
from tests.support.services import Service, running

pytestmark = pytest.mark.real
FILE = real_model.TARGET.gguf(pair.ROOT)


@pytest.fixture(scope="module")
def services() -> Iterator[tuple[Service, Service]]:
    """A drafter of 24 layers in bfloat16, and a verifier with the file."""
    with running("drafter", pair.DRAFT) as drafter, running("verifier", FILE) as verifier:
        yield drafter, verifier


def test_the_tokenizer_is_the_folders() -> None:
    ours, own = load_tokenizer(str(FILE)), load_tokenizer(str(pair.TARGET))
    assert ours is not None
    assert own is not None
    for messages in CHATS.values():
        text = own.apply_chat_template(messages, tokenize=False)
        assert ours.apply_chat_template(messages, tokenize=False) == text
        assert ours(text)["input_ids"] == own(text)["input_ids"]
    assert fingerprint(ours) == fingerprint(own)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_the_text_is_the_same_with_drafts_and_without(
    services: tuple[Service, Service], temperature: float
) -> None:
    drafter, verifier = services
    sampling = SamplingParams(temperature=temperature)
    alone = [GenerationRequest(ids, sampling, 48, seed=i, gamma=0) for i, ids in enumerate(pair.prompts())]
    async with connected([drafter], [verifier], tokenizer=FILE) as orchestrator:
        expected = [one.token_ids for one in await run_all(orchestrator, alone)]
        for gamma, gate in ((4, Gate.NONE), (8, Gate.TARGET_CONFIDENCE)):
            generations = await run_all(orchestrator, [replace(one, gamma=gamma, gate=gate) for one in alone])
            expect_texts(f"gamma {gamma} gate {gate}", generations, expected)
            assert sum(one.stats.accepted for one in generations) > 0
