"""The choices of one request: each is a request of the queue, with a seed of its own; they run side by side."""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from orchestrator.api.request_queue import RequestQueue
from orchestrator.api.turns import Turn
from orchestrator.decode.admission import RANDOM_SEED_BITS
from orchestrator.decode.request import Delta, GenerationRequest, GenerationStats
from specgate.errors import InvalidArgument
from specgate.types import SEED_LIMIT, check_range

MAX_CHOICES = 16
"""In one answer: prompts times n."""
SEED_BYTES = 8

IndexedDelta = tuple[int, Delta]


def check_num_choices(num_prompts: int, n: int) -> None:
    """Raise InvalidArgument unless there is at least one choice, and not too many."""
    if n < 1:
        raise InvalidArgument("n", f"{n} is below 1")
    if num_prompts * n > MAX_CHOICES:
        field = "prompt" if num_prompts > MAX_CHOICES else "n"
        raise InvalidArgument(field, f"{num_prompts} prompts times n = {n}; {MAX_CHOICES} choices are the most")


def choices_of(requests: Sequence[GenerationRequest], n: int) -> list[GenerationRequest]:
    """Return ``n`` choices for each of the requests, which have one seed.

    Choice 0 has that seed, or a random one where there is none; the others have ``seed_of_choice``.

    Raises:
        InvalidArgument: the seed is out of its range.
    """
    if len(requests) * n == 1:
        return list(requests)
    given = requests[0].seed
    seed = secrets.randbits(RANDOM_SEED_BITS) if given is None else given
    check_range("seed", seed, 0, SEED_LIMIT - 1)
    copies = [request for request in requests for _ in range(n)]
    return [replace(request, seed=seed_of_choice(seed, index)) for index, request in enumerate(copies)]


def seed_of_choice(seed: int, index: int) -> int:
    """Return the request's own seed for choice 0; for any other one the first 8 bytes of the SHA-256 of seed and index,
    each of which is hashed as 8 bytes. All are big-endian.
    """
    if index == 0:
        return seed
    parts = (number.to_bytes(SEED_BYTES, "big") for number in (seed, index))
    return int.from_bytes(hashlib.sha256(b"".join(parts)).digest()[:SEED_BYTES], "big")


class Choices:
    """Runs the choices of one answer: each waits for a turn of its own, and runs when it comes.

    Args:
        on_turn: called at each turn.
    """

    def __init__(
        self,
        request_queue: RequestQueue,
        requests: Sequence[GenerationRequest],
        on_turn: Callable[[], None] = lambda: None,
    ) -> None:
        self._request_queue = request_queue
        self._requests = requests
        self._on_turn = on_turn
        self._turns: Sequence[Turn] = ()

    @property
    def stats(self) -> list[GenerationStats]:
        """Of each choice, counted so far."""
        return [turn.stats for turn in self._turns]

    async def deltas(self) -> AsyncGenerator[IndexedDelta, None]:
        """Yield the deltas of all choices as they come, each with its choice's index. Closing it early frees all.

        Raises:
            InvalidArgument, TooManySessions, ServiceUnavailable: see ``RequestQueue.reserved``.
            SpecgateError: the first failure of a choice, which ends all of them.
        """
        with self._request_queue.reserved(self._requests) as self._turns:
            streams = [self._deltas_of(index, turn) for index, turn in enumerate(self._turns)]
            # One alone needs nobody to bring it together.
            async with aclosing(streams[0] if len(streams) == 1 else _merged(streams)) as deltas:
                async for one in deltas:
                    yield one

    async def _deltas_of(self, index: int, turn: Turn) -> AsyncGenerator[IndexedDelta, None]:
        async with turn.taken() as running, aclosing(running.deltas()) as deltas:
            self._on_turn()
            async for delta in deltas:
                yield index, delta


async def _merged(streams: Sequence[AsyncGenerator[IndexedDelta, None]]) -> AsyncGenerator[IndexedDelta, None]:
    """Yield what the streams yield, as it comes. Whoever reads slowly holds all of them up."""
    items: asyncio.Queue[IndexedDelta | Exception | None] = asyncio.Queue(1)
    pumping = [asyncio.create_task(_pump(stream, items)) for stream in streams]
    try:
        num_left = len(streams)
        while num_left:
            item = await items.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_left -= 1
            else:
                yield item
    finally:
        for task in pumping:
            task.cancel()
        await asyncio.wait(pumping)


async def _pump(
    stream: AsyncGenerator[IndexedDelta, None], items: "asyncio.Queue[IndexedDelta | Exception | None]"
) -> None:
    end: Exception | None = None
    try:
        async with aclosing(stream):
            async for item in stream:
                await items.put(item)
    except Exception as error:
        end = error
    await items.put(end)
