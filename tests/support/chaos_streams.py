"""A stream, read to its end while something breaks: what its reader got, and how long it waited."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from orchestrator.decode.request import Delta, GenerationRequest
from orchestrator.policy.gates import Gate
from specgate.errors import SpecgateError
from specgate.types import SamplingParams, TokenSource

NUM_TOKENS = 400
FAULT_AT = 40
SEEDED = GenerationRequest(
    (), SamplingParams(temperature=1.0), NUM_TOKENS, seed=7, gamma=3, gate=Gate.NONE, ignore_eos=True
)
Faults = Mapping[int, Callable[[], Any]]
"""What is done, beside the stream, once so many tokens are out."""


@dataclass(slots=True)
class Seen:
    """What a reader has of one stream. ``gap_s`` is the longest wait after the first piece, an error's included."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    sources: list[TokenSource] = field(default_factory=list)
    gap_s: float = 0.0
    first_s: float = 0.0
    error: SpecgateError | None = None

    @property
    def told(self) -> str:
        """In a few words, for the table."""
        if self.error is not None:
            return f"{len(self.token_ids)} tokens, then {type(self.error).__name__}: {self.error}"
        solo = sum(source is TokenSource.SOLO for source in self.sources)
        return f"whole stream, {solo} of {len(self.sources)} tokens solo"


async def watch(deltas: AsyncIterator[Delta], faults: Faults = MappingProxyType({}), pace_s: float = 0.0) -> Seen:
    """Read a stream to its end; a reader with a ``pace_s`` takes so long for each delta once something broke.

    It reads no further before what is done is done: a busy machine starts a service slowly.
    """
    seen, todo, doing = Seen(), dict(faults), list[asyncio.Task[Any]]()
    start_s = last_s = time.monotonic()
    try:
        async with aclosing(deltas):  # type: ignore[type-var]
            async for delta in deltas:
                now_s = time.monotonic()
                if seen.token_ids:
                    seen.gap_s = max(seen.gap_s, now_s - last_s)
                else:
                    seen.first_s = now_s - start_s
                _add(seen, delta)
                for at in [at for at in todo if len(seen.token_ids) >= at]:
                    doing.append(asyncio.create_task(_in_thread(todo.pop(at))))
                if doing and pace_s:
                    await asyncio.gather(*doing)
                    await asyncio.sleep(pace_s)
                last_s = time.monotonic()
    except SpecgateError as error:
        seen.error, seen.gap_s = error, max(seen.gap_s, time.monotonic() - last_s)
    await asyncio.gather(*doing)
    assert not todo, f"it ended before it was disturbed: {seen.told}"
    return seen


async def _in_thread(fault: Callable[[], Any]) -> None:
    await asyncio.to_thread(fault)


def _add(seen: Seen, delta: Delta) -> None:
    seen.token_ids += delta.token_ids
    seen.text += delta.text
    seen.sources += delta.sources


async def watch_all(streams: Sequence[AsyncIterator[Delta]]) -> list[Seen]:
    """Read streams side by side."""
    return list(await asyncio.gather(*map(watch, streams)))
