"""What clients of a soak ask for: a fixed set of requests, drawn at random, through both APIs, whole or streamed."""

import random
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import cycle, product
from typing import NamedTuple

from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.gates import Gate
from specgate.types import SamplingParams
from specgate_lab.workload import mixed_prompts

LENGTHS = (8, 48, 128)
TEMPERATURES = (0.0, 1.0)
SEEDS = (1, 2)
LEAVES = 0.15
"""The share of clients that leave in mid-answer."""


class Way(StrEnum):
    """Through which door, and whether the answer comes in pieces."""

    GRPC_STREAM = "grpc stream"
    GRPC_WHOLE = "grpc whole"
    HTTP_STREAM = "http stream"
    HTTP_WHOLE = "http whole"


class Ask(NamedTuple):
    """One request: its number in the catalogue. ``leaves_after`` so many tokens its client is gone; None: it stays."""

    number: int
    text: str
    request: GenerationRequest
    way: Way
    leaves_after: int | None = None


def catalogue() -> list[tuple[str, GenerationRequest]]:
    """Return every prompt and request that is ever asked: so few that each is asked many times."""
    kinds = product(LENGTHS, TEMPERATURES, SEEDS)
    return [
        (text, GenerationRequest((), SamplingParams(temperature=temperature), length, seed=seed, ignore_eos=True))
        for text, (length, temperature, seed) in zip(cycle(mixed_prompts()), kinds, strict=False)
    ]


def alone(request: GenerationRequest) -> GenerationRequest:
    """Return the request as the target answers it with no draft: under shared noise the same text."""
    return replace(request, gamma=0, gate=Gate.NONE)


def draw(rng: random.Random, asked: Sequence[tuple[str, GenerationRequest]]) -> Ask:
    """Return what the next client asks for."""
    number = rng.randrange(len(asked))
    text, request = asked[number]
    way = rng.choice(list(Way))
    leaves = way in (Way.GRPC_STREAM, Way.HTTP_STREAM) and rng.random() < LEAVES
    return Ask(number, text, request, way, rng.randrange(request.max_tokens) if leaves else None)
