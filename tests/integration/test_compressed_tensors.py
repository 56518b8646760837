"""Both services with folders of compressed-tensors: the text is that of their numbers, with drafts as without."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.compressed_folders import write_compressed
from tests.support.services import PAIR, running
from tests.support.stored_services import Served, expect_text_of_the_numbers, greedy_texts

KINDS: dict[str, dict[str, Any]] = {
    "4 bits": {"bits": 4, "strategy": "group", "group_size": 32, "symmetric": False},
    "8 bits": {"bits": 8, "kind": "int-quantized"},
}


@pytest.fixture(scope="module", params=KINDS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("compressed")
    write_compressed(folder / "draft", PAIR / "draft", **KINDS[request.param])
    greedy = greedy_texts(write_compressed(folder / "target", PAIR / "target", **KINDS[request.param]))
    with running("drafter", folder / "draft") as drafter, running("verifier", folder / "target") as verifier:
        yield Served(drafter, verifier, folder / "target", greedy)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_the_text_is_that_of_the_folders_numbers(served: Served, temperature: float) -> None:
    await expect_text_of_the_numbers(served, temperature)
