"""Many prompts at a time, read in input order."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from orchestrator.cli.answering import Answerer
from orchestrator.decode.request import Delta
from orchestrator.terminal.prompts import Prompt
from orchestrator.terminal.results import Collector, Result
from specgate.errors import SpecgateError


class PromptJob:
    """One running prompt: read its deltas or wait for its result."""

    def __init__(self, answerer: Answerer, prompt: Prompt, turn: asyncio.Semaphore) -> None:
        self.prompt = prompt
        self._deltas: asyncio.Queue[Delta | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._run(answerer, turn))

    async def deltas(self) -> AsyncIterator[Delta]:
        """Yield the deltas as they come; stop if the request fails, see ``outcome``."""
        while delta := await self._deltas.get():
            yield delta

    async def outcome(self) -> Result | SpecgateError:
        """Return the result or the error."""
        try:
            return await self._task
        except SpecgateError as error:
            return error

    async def cancel(self) -> None:
        """End it and free its sessions."""
        self._task.cancel()
        # The caller gives the job up, and with it its error.
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, answerer: Answerer, turn: asyncio.Semaphore) -> Result:
        try:
            async with turn:
                return await self._generate(answerer)
        finally:
            self._deltas.put_nowait(None)

    async def _generate(self, answerer: Answerer) -> Result:
        collector = Collector()

        def on_delta(delta: Delta) -> None:
            collector.add(delta, time.perf_counter())
            self._deltas.put_nowait(delta)

        return collector.result(await answerer.answer(self.prompt, on_delta))


@asynccontextmanager
async def running_jobs(
    answerer: Answerer, prompts: Sequence[Prompt], concurrency: int
) -> AsyncIterator[list[PromptJob]]:
    """One job a prompt, in order; ``concurrency`` of them run at a time. Leaving ends those that still do."""
    turn = asyncio.Semaphore(concurrency)
    jobs = [PromptJob(answerer, prompt, turn) for prompt in prompts]
    try:
        yield jobs
    finally:
        for job in jobs:
            await job.cancel()
