"""Clients of a soak: each draws one request after the other, and compares its answer with the target's own.

Requests come through both APIs, whole or streamed, with every gate and kind of verification, temperatures, filters,
penalties and grammars. Each client's are drawn from a seed.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.gates import Gate
from specgate.errors import ServiceUnavailable, SpecgateError
from specgate.types import Grammar, GrammarKind, SamplingParams, Verification
from specgate_lab.clients import GrpcClient, complete, stream_completion
from specgate_lab.gate_choice import TARGET_ALONE
from specgate_lab.served_child import MODEL_NAME, ServedEndpoints
from specgate_lab.workload import mixed_prompts

MAX_TOKENS = 128
MAX_DRAWN_GAMMA = 8
GRAMMARS = (r"[a-z_]{4,40}\(self(, [a-z_]{2,12}){0,3}\):", r"[0-9]{4}-[0-9]{2}-[0-9]{2}( [a-z]{1,8}){1,20}")
LEAVES = 0.15
"""The share of streaming clients that leave in mid-answer."""
REST_S = 0.5
"""After a refusal, as its delay asks for."""
ANSWERS_WITHIN_S = 120.0
"""What takes longer hangs: an answer has at most 128 tokens, and a replica that was killed is back in half a minute."""
_SHOWN = 60
"""Characters of a prompt or an error in a message."""


class Way(StrEnum):
    """Through which door, and whether the answer comes in pieces."""

    GRPC_STREAM = "grpc stream"
    GRPC_WHOLE = "grpc whole"
    HTTP_STREAM = "http stream"
    HTTP_WHOLE = "http whole"


class Ask(NamedTuple):
    """One request. Its client leaves ``leaves_after`` so many tokens; None: it stays."""

    text: str
    request: GenerationRequest
    way: Way
    leaves_after: int | None = None

    def leaves_at(self, num_tokens: int) -> bool:
        """Whether the client leaves with so many tokens."""
        return self.leaves_after is not None and num_tokens > self.leaves_after

    @property
    def kind(self) -> tuple[str, GenerationRequest]:
        """What the answer follows from: a greedy one has no seed."""
        return self.text, replace(self.request, seed=0) if self.request.sampling.greedy else self.request

    def __str__(self) -> str:
        return f"{self.way}, {self.request}, after {self.text[:_SHOWN]!r}"


def draw(rng: random.Random) -> Ask:
    """Return the next request of a client."""
    text = rng.choice(mixed_prompts())
    sampling = SamplingParams(
        temperature=rng.choice((0.0, 0.5, 1.0)),
        top_p=rng.choice((1.0, 1.0, 0.9)),
        top_k=rng.choice((0, 0, 20)),
        frequency_penalty=rng.choice((0.0, 0.0, 0.5)),
    )
    request = GenerationRequest(
        (),
        sampling,
        rng.randint(1, MAX_TOKENS),
        seed=rng.getrandbits(32),
        ignore_eos=True,
        gamma=rng.choice((None, *range(MAX_DRAWN_GAMMA + 1))),
        gate=rng.choice(list(Gate)),
        verification=rng.choice(list(Verification)),
        grammar=Grammar(GrammarKind.REGEX, rng.choice(GRAMMARS)) if rng.random() < 1 / 5 else None,
    )
    way = rng.choice(list(Way))
    leaves = way in (Way.GRPC_STREAM, Way.HTTP_STREAM) and rng.random() < LEAVES
    cut = rng.randrange(len(text) // 2)
    return Ask(text[cut:], request, way, rng.randrange(request.max_tokens) if leaves else None)


@dataclass(frozen=True, slots=True)
class Expected:
    """The target's own answer; ``near_ties`` is how often its choice was too close to be the same in every batch.

    0 where a row is the same in every batch. ``is_law``: only the law of the answer is promised, not its tokens.
    """

    token_ids: tuple[int, ...]
    near_ties: int
    is_law: bool = False


@dataclass(slots=True)
class Tally:
    """The results of all requests so far.

    ``differing`` texts met no near tie; those that did, anywhere in the target's own text, are counted apart.
    ``lost`` requests found no service, ``failed`` ones failed in another way.
    """

    whole: int = 0
    left: int = 0
    near_ties: int = 0
    tokens: int = 0
    compared_tokens: int = 0
    requests: set[int] = field(default_factory=set)
    differing: list[str] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)

    def add(self, ask: Ask, token_ids: Sequence[int], expected: Expected) -> None:
        """Count one answer, or as much of it as its client waited for."""
        self.tokens += len(token_ids)
        self.requests.add(hash(str(ask.kind)))
        self.whole += ask.leaves_after is None
        self.left += ask.leaves_after is not None
        if expected.is_law:
            self.differing += [] if _is_whole(ask, len(token_ids)) else [str(ask)]
            return
        self.compared_tokens += len(token_ids)
        is_short = len(token_ids) < _fewest(ask, len(expected.token_ids))
        if not is_short and tuple(token_ids) == expected.token_ids[: len(token_ids)]:
            return
        # A near tie makes another text, but none that breaks off.
        if expected.near_ties and not is_short:
            self.near_ties += 1
        else:
            self.differing.append(str(ask))


def _is_whole(ask: Ask, num_tokens: int) -> bool:
    """Return whether an answer has as many tokens as were asked for; a grammar may end one early."""
    most = ask.request.max_tokens
    return (1 if ask.request.grammar else _fewest(ask, most)) <= num_tokens <= most


def _fewest(ask: Ask, length: int) -> int:
    """Return how many tokens of an answer of ``length`` a client has at the least."""
    return length if ask.leaves_after is None else min(length, ask.leaves_after + 1)


async def answer_of_target(apis: ServedEndpoints, ask: Ask, *, batch_invariant: bool) -> Expected:
    """Return the target's own answer: in greedy and under shared noise it is the same text. Raises SpecgateError."""
    if ask.request.rejects:
        return Expected((), 0, is_law=True)
    alone = TARGET_ALONE.of(ask.request)
    async with GrpcClient(apis.grpc) as own:
        token_ids = [token_id async for delta in own.stream(alone, ask.text) for token_id in delta.token_ids]
        return Expected(tuple(token_ids), 0 if batch_invariant else own.stats.near_ties)


async def client(apis: ServedEndpoints, seed: int, tally: Tally, *, batch_invariant: bool) -> None:
    """Ask until cancelled."""
    rng = random.Random(seed)
    while True:
        ask = draw(rng)
        try:
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                token_ids = await _answer(apis, ask)
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                expected = await answer_of_target(apis, ask, batch_invariant=batch_invariant)
        except (SpecgateError, TimeoutError) as error:
            count = tally.lost if isinstance(error, ServiceUnavailable) else tally.failed
            count[f"{type(error).__name__}: {error}"[:_SHOWN]] += 1
            await asyncio.sleep(REST_S)
            continue
        tally.add(ask, token_ids, expected)


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
