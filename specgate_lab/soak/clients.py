"""Clients of a soak: each sends one request after the other, and compares its answer with the target's own.

They ask for a small set of requests, drawn at random, through both APIs, whole or streamed.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import cycle, product
from typing import NamedTuple

from orchestrator.decode.request import GenerationRequest
from specgate.errors import SpecgateError
from specgate.types import SamplingParams
from specgate_lab.clients import GrpcClient, complete, stream_completion
from specgate_lab.gate_choice import TARGET_ALONE
from specgate_lab.served_child import MODEL_NAME, ServedEndpoints
from specgate_lab.workload import mixed_prompts

LENGTHS = (8, 48, 128)
TEMPERATURES = (0.0, 1.0)
SEEDS = (1, 2)
LEAVES = 0.15
"""The share of streaming clients that leave in mid-answer."""
REST_S = 0.5
"""After a refusal, as its delay asks for."""
_SHOWN = 60
"""Characters of a prompt or an error in a message."""


class Way(StrEnum):
    """Through which door, and whether the answer comes in pieces."""

    GRPC_STREAM = "grpc stream"
    GRPC_WHOLE = "grpc whole"
    HTTP_STREAM = "http stream"
    HTTP_WHOLE = "http whole"


class Ask(NamedTuple):
    """One request: its number in the catalogue. Its client leaves ``leaves_after`` so many tokens; None: it stays."""

    number: int
    text: str
    request: GenerationRequest
    way: Way
    leaves_after: int | None = None

    def leaves_at(self, num_tokens: int) -> bool:
        """Whether the client leaves with so many tokens."""
        return self.leaves_after is not None and num_tokens > self.leaves_after


def catalogue() -> list[tuple[str, GenerationRequest]]:
    """Return every prompt and request that is ever asked: so few that each is asked many times."""
    kinds = product(LENGTHS, TEMPERATURES, SEEDS)
    return [
        (text, GenerationRequest((), SamplingParams(temperature=temperature), length, seed=seed, ignore_eos=True))
        for text, (length, temperature, seed) in zip(cycle(mixed_prompts()), kinds, strict=False)
    ]


def draw(rng: random.Random, asked: Sequence[tuple[str, GenerationRequest]]) -> Ask:
    """Return the next request of a client."""
    number = rng.randrange(len(asked))
    text, request = asked[number]
    way = rng.choice(list(Way))
    leaves = way in (Way.GRPC_STREAM, Way.HTTP_STREAM) and rng.random() < LEAVES
    return Ask(number, text, request, way, rng.randrange(request.max_tokens) if leaves else None)


@dataclass(frozen=True, slots=True)
class Expected:
    """The target's own answer; ``near_ties`` is how often its choice was too close to be the same in every batch.

    0 where a row is the same in every batch.
    """

    token_ids: tuple[int, ...]
    near_ties: int


@dataclass(slots=True)
class Tally:
    """The results of all requests so far. ``differing`` texts met no near tie; those that did are counted apart."""

    whole: int = 0
    left: int = 0
    near_ties: int = 0
    tokens: int = 0
    differing: list[str] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)

    def add(self, ask: Ask, token_ids: Sequence[int], expected: Expected) -> None:
        """Count one answer, or as much of it as its client waited for."""
        self.tokens += len(token_ids)
        self.whole += ask.leaves_after is None
        self.left += ask.leaves_after is not None
        enough = len(expected.token_ids) if ask.leaves_after is None else ask.leaves_after + 1
        is_short = len(token_ids) < enough
        if not is_short and tuple(token_ids) == expected.token_ids[: len(token_ids)]:
            return
        # A near tie makes another text, but none that breaks off.
        if expected.near_ties and not is_short:
            self.near_ties += 1
        else:
            seed, length = ask.request.seed, ask.request.max_tokens
            self.differing.append(f"{ask.way}, seed {seed}, {length} tokens after {ask.text[:_SHOWN]!r}")


async def answers_of_target(
    apis: ServedEndpoints, asked: Sequence[tuple[str, GenerationRequest]], *, batch_invariant: bool
) -> list[Expected]:
    """Return the target's own answers to everything that will be asked: under shared noise they are the same texts."""
    answers = []
    async with GrpcClient(apis.grpc) as own:
        for text, request in asked:
            alone = TARGET_ALONE.of(request)
            token_ids = [token_id async for delta in own.stream(alone, text) for token_id in delta.token_ids]
            answers.append(Expected(tuple(token_ids), 0 if batch_invariant else own.stats.near_ties))
    return answers


async def client(
    apis: ServedEndpoints,
    asked: Sequence[tuple[str, GenerationRequest]],
    expected: Sequence[Expected],
    seed: int,
    tally: Tally,
) -> None:
    """Ask until cancelled."""
    rng = random.Random(seed)
    while True:
        ask = draw(rng, asked)
        try:
            token_ids = await _answer(apis, ask)
        except SpecgateError as error:
            tally.failed[f"{type(error).__name__}: {error}"[:_SHOWN]] += 1
            await asyncio.sleep(REST_S)
            continue
        tally.add(ask, token_ids, expected[ask.number])


async def _answer(apis: ServedEndpoints, ask: Ask) -> list[int]:
    """Return the tokens that its client waited for."""
    if ask.way in (Way.HTTP_STREAM, Way.HTTP_WHOLE):
        return await asyncio.to_thread(_http_answer, apis, ask)
    token_ids: list[int] = []
    async with GrpcClient(apis.grpc) as own:
        if ask.way is Way.GRPC_WHOLE:
            return list((await own.generate(ask.request, ask.text)).token_ids)
        async with aclosing(own.stream(ask.request, ask.text)) as deltas:
            async for delta in deltas:
                token_ids += delta.token_ids
                if ask.leaves_at(len(token_ids)):
                    break
    return token_ids


def _http_answer(apis: ServedEndpoints, ask: Ask) -> list[int]:
    if ask.way is Way.HTTP_WHOLE:
        return list(complete(apis.http, MODEL_NAME, ask.request, ask.text).token_ids)
    token_ids: list[int] = []
    with closing(stream_completion(apis.http, MODEL_NAME, ask.request, ask.text)) as deltas:
        for delta in deltas:
            token_ids += delta.token_ids
            if ask.leaves_at(len(token_ids)):
                break
    return token_ids
