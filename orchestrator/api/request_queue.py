"""What both doors stand on: one orchestrator, so many requests at a time, so many more that wait, no more.

A running request's deltas pass through a bounded buffer. A reader that is slower than the models stops the decode
loop between rounds; one that is slower than ``ReadPace`` allows is cut off.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager

from orchestrator.api.read_pace import ReadPace
from orchestrator.api.settings.settings import Defaults, GatewaySettings
from orchestrator.decode.request import Delta, GenerationRequest, GenerationStats
from orchestrator.decode.text import TextTokenizer
from orchestrator.generation.generation import Generation
from orchestrator.generation.orchestrator import Orchestrator
from specgate.errors import InvalidArgument, ServiceUnavailable, TooManySessions
from specgate.grammar import usable
from specgate.types import Grammar, ModelInfo

SHORT_CHARACTERS = 4096
"""A text of this length is encoded in a few milliseconds."""
MAX_TOKEN_CHARACTERS = 256
"""No token in use is longer, so a longer text than this many characters a token of context is refused unread."""
MAX_ENCODING = 2
"""Long prompts that are encoded at a time; others wait for their turn."""

Encode = Callable[[TextTokenizer], tuple[int, ...]]
"""Makes a prompt's token ids with the target's tokenizer."""


class RunningRequest:
    """One admitted request. Iterate ``deltas()`` once."""

    def __init__(self, generation: Generation, limits: GatewaySettings, heard: Callable[[], None]) -> None:
        self._heard = heard
        self._generation = generation
        self._buffer: asyncio.Queue[Delta | Exception | None] = asyncio.Queue(limits.output_buffer)
        self._producer: asyncio.Task[None] | None = None

    @property
    def stats(self) -> GenerationStats:
        """Counted so far; complete from the last delta on."""
        return self._generation.stats

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """Yield what is committed; the last delta has a finish reason. Closing it early frees both sessions.

        Raises:
            SpecgateError: see ``Generation``; after the deltas before it.
            ServiceUnavailable: the gateway was closed in mid-request.
        """
        self._producer = asyncio.create_task(self._produce())
        try:
            while (item := await self._buffer.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            await self.aclose()
        if self._generation.finish_reason is None:
            raise ServiceUnavailable("the gateway was closed before the request was finished")

    async def aclose(self) -> None:
        """Free both sessions. Safe to call twice."""
        if self._producer is not None:
            self._producer.cancel()
            await asyncio.wait((self._producer,))
        await self._generation.aclose()

    async def _produce(self) -> None:
        end: Exception | None = None
        try:
            async with aclosing(self._generation.__aiter__()) as deltas:
                async for delta in deltas:
                    self._heard()
                    await self._buffer.put(delta)
        except Exception as error:
            end = error
        await self._buffer.put(end)


class RequestQueue:
    """Admits requests to one orchestrator.

    Args:
        model_name: what the served model is called to clients.
        defaults: for what a request leaves open.
    """

    def __init__(
        self, orchestrator: Orchestrator, limits: GatewaySettings, defaults: Defaults, model_name: str
    ) -> None:
        self.orchestrator = orchestrator
        self.defaults = defaults
        self.model_name = model_name
        self.draining = False
        self.heard_at: float | None = None
        """When a verifier last answered a request here, in seconds of ``time.monotonic``."""
        self._limits = limits
        self._turn = asyncio.Semaphore(limits.max_running)
        # Threads of its own: one whose client has left still counts until its work is done.
        self._encoding = ThreadPoolExecutor(MAX_ENCODING, thread_name_prefix="encode")
        self._num_inside = 0
        self._num_running = 0
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def tokenizer(self) -> TextTokenizer:
        """The target's. Raises InvalidArgument where it has none: then prompts are token ids."""
        if self.orchestrator.tokenizer is None:
            raise InvalidArgument("prompt", "the served model has no tokenizer; give token ids")
        return self.orchestrator.tokenizer

    @property
    def target_info(self) -> ModelInfo:
        return self.orchestrator.target_info

    @property
    def num_inside(self) -> int:
        """Requests that run or wait."""
        return self._num_inside

    @property
    def num_running(self) -> int:
        """Requests whose turn has come."""
        return self._num_running

    def read_pace(self) -> ReadPace:
        """Return what times the writes of one answer."""
        return ReadPace(self._limits.slow_reader_tokens_per_s, self._limits.slow_reader_s)

    def default_max_tokens(self, num_prompt_tokens: int) -> int:
        """Return what a request gets that leaves it open: the configured number, or the room behind its prompt."""
        room = self.target_info.context_length - num_prompt_tokens
        return max(1, min(self.defaults.max_tokens, room))

    async def encode(self, encode: Encode, num_characters: int, field: str) -> tuple[int, ...]:
        """Return the ids that ``encode`` makes. A long prompt is encoded beside the event loop, which others wait for.

        Args:
            num_characters: of the prompt.

        Raises:
            InvalidArgument: the prompt cannot fit the target's context, before it is encoded; names ``field``. Or
                there is no tokenizer, or ``encode`` raised it.
        """
        limit = self.target_info.context_length * MAX_TOKEN_CHARACTERS
        if num_characters > limit:
            raise InvalidArgument(field, f"has {num_characters} characters; {limit} are the most")
        tokenizer = self.tokenizer
        if num_characters <= SHORT_CHARACTERS:
            return encode(tokenizer)
        return await asyncio.get_running_loop().run_in_executor(self._encoding, encode, tokenizer)

    async def checked(self, grammar: Grammar | None) -> Grammar | None:
        """Return the grammar as services take it, beside the event loop: a hard one takes a second.

        Raises:
            InvalidArgument: it cannot be used; the field is the place in it.
        """
        if grammar is None:
            return None
        return await asyncio.get_running_loop().run_in_executor(self._encoding, usable, grammar)

    def check_room(self) -> None:
        """Raise what ``admitted`` would raise now for any request; before work is put into reading one.

        Raises:
            TooManySessions: as many run and wait as may.
            ServiceUnavailable: the gateway is draining.
        """
        if self.draining:
            raise ServiceUnavailable("the gateway is draining")
        running, waiting = self._limits.max_running, self._limits.max_queued
        if self._num_inside >= running + waiting:
            raise TooManySessions(f"{running} requests run and {waiting} wait; come back later")

    @asynccontextmanager
    async def admitted(self, request: GenerationRequest) -> AsyncIterator[RunningRequest]:
        """Check the request, wait for its turn, and free everything when the block is left.

        Raises:
            InvalidArgument: the request does not fit the target; before it waits.
            TooManySessions, ServiceUnavailable: see ``check_room``.
        """
        self.check_room()
        generation = self.orchestrator.generate(request)
        self._num_inside += 1
        self._empty.clear()
        try:
            async with self._turn, aclosing(RunningRequest(generation, self._limits, self._on_announcement)) as running:
                self._num_running += 1
                try:
                    yield running
                finally:
                    self._num_running -= 1
        finally:
            self._num_inside -= 1
            if self._num_inside == 0:
                self._empty.set()

    def _on_announcement(self) -> None:
        self.heard_at = time.monotonic()

    async def drain(self, timeout_s: float) -> bool:
        """Admit nobody any more; return whether the last request ended within ``timeout_s``."""
        self.draining = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True
