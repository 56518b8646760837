"""The cases in which gates are compared, and the requests of each."""

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

from orchestrator.decode.request import GenerationRequest

REQUESTS_A_CLIENT = 2
"""Of a block with several clients, so that a block is more than a start and an end."""


class DraftKind(StrEnum):
    """Which draft: as it is, or with its weights shuffled."""

    GOOD = "good"
    RANDOM = "random"


class Case(NamedTuple):
    """One comparison; ``concurrency`` is how many clients ask at a time."""

    draft: DraftKind
    temperature: float
    concurrency: int

    def __str__(self) -> str:
        return f"{self.draft} draft, temperature {self.temperature:g}, {self.concurrency} at a time"


def requests_of(case: Case, prompts: Sequence[GenerationRequest], block: int) -> list[GenerationRequest]:
    """Return a block's requests. Blocks take the prompts in order and from the start again, each with a new seed."""
    num = case.concurrency * (REQUESTS_A_CLIENT if case.concurrency > 1 else 1)
    taken = [prompts[(block * num + index) % len(prompts)] for index in range(num)]
    return [
        replace(
            request,
            sampling=replace(request.sampling, temperature=case.temperature),
            seed=(request.seed or 0) + block * num + index,
        )
        for index, request in enumerate(taken)
    ]
