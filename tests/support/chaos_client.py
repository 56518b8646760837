"""The seeded stream as a process, for a host of its own: ``python -m tests.support.chaos_client VERIFIER DRAFTER``.

It says how far it is, ``{"tokens": N}`` a delta, and in the end what it saw.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from orchestrator.decode.request import Delta
from orchestrator.services.timeouts import Timeouts
from tests.support.chaos_fleet import REQUEST
from tests.support.chaos_streams import watch
from tests.support.orchestrating import connected


class At(NamedTuple):
    """Where a service is that somebody else has started."""

    endpoint: str


async def _told(deltas: AsyncIterator[Delta]) -> AsyncIterator[Delta]:
    num_tokens = 0
    async for delta in deltas:
        num_tokens += len(delta.token_ids)
        print(json.dumps({"tokens": num_tokens}), flush=True)
        # So that there is time for something to break.
        await asyncio.sleep(0.02)
        yield delta


async def _main(verifier: str, drafter: str) -> None:
    async with connected([At(drafter)], [At(verifier)], Timeouts()) as orchestrator:
        seen = await watch(_told(aiter(orchestrator.generate(REQUEST))))
    print(json.dumps({"token_ids": seen.token_ids, "gap_s": seen.gap_s, "told": seen.told}), flush=True)


async def seen_from(command: Sequence[str], faults: Mapping[int, Callable[[], Any]]) -> dict[str, Any]:
    """Run the client by ``command``; do what is to be done once so many tokens are out; return what it saw."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, limit=1 << 20
    )
    todo, told = dict(faults), dict[str, Any]()
    assert process.stdout is not None
    async for line in process.stdout:
        told = json.loads(line)
        for at in [at for at in todo if told.get("tokens", 0) >= at]:
            await asyncio.to_thread(todo.pop(at))
    assert await process.wait() == 0
    assert not todo
    return told


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
