"""What both APIs stand on: one orchestrator, so many requests at a time, so many more that wait, no more."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing, contextmanager
from functools import partial
from typing import TypeVar

from orchestrator.api.choices import check_num_logprobs
from orchestrator.api.failures import for_strangers
from orchestrator.api.grammars import CheckedGrammars
from orchestrator.api.keys.account import audit_refusal, charged
from orchestrator.api.metrics.gateway import GatewayMetrics
from orchestrator.api.metrics.requests import RequestTimer
from orchestrator.api.read_pace import ReadPace
from orchestrator.api.settings.settings import Defaults, GatewaySettings
from orchestrator.api.traces import conclude, describe, round_spans
from orchestrator.decode.request import Delta, GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.generation.generation import Generation
from orchestrator.generation.orchestrator import Orchestrator
from specgate.errors import InvalidArgument, ServiceUnavailable, SpecgateError, TooManySessions
from specgate.types import Grammar, ModelInfo

MAX_SIZE_AT_ONCE = 4096
"""Work on so many bytes, tokens or log-probabilities takes up to 10 ms."""
MAX_TOKEN_BYTES = 256
"""No token in use is longer, so a request of more than this many bytes a token of context is refused unread."""
OTHER_BYTES = 1 << 20
"""Of a request beside its prompt: a grammar has up to 262,144 characters."""
MAX_BESIDE = 2
"""Long pieces of work that are done at a time; others wait for their turn."""

Buffer = asyncio.Queue[tuple[int, Delta] | Exception | None]
"""Of one answer: deltas with their request's index; for each request at last None, or the error that ended it."""
OnTurn = Callable[[float, float], None]
"""Called at the turn of a request with when it came and when its turn did, in seconds of ``time.perf_counter``."""
T = TypeVar("T")


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
        self._beside = ThreadPoolExecutor(MAX_BESIDE, thread_name_prefix="beside")
        self._grammars = CheckedGrammars()
        self._num_inside = self._num_running = 0
        self._waiting: set[RequestTimer] = set()
        running, queued = limits.max_running, limits.max_queued
        self.metrics = GatewayMetrics(model_name, self, running, queued, has_drafter=orchestrator.has_drafters)
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def tokenizer(self) -> TextTokenizer:
        """The target's. Raises InvalidArgument where it has none: then prompts are token ids."""
        if self.orchestrator.tokenizer is None:
            raise InvalidArgument("prompt", "the served model has no tokenizer; give token ids")
        return self.orchestrator.tokenizer

    @property
    def tool_call_format(self) -> str:
        """See ``GatewaySettings``."""
        return self._limits.tool_call_format

    @property
    def target_info(self) -> ModelInfo:
        return self.orchestrator.target_info

    @property
    def num_inside(self) -> int:
        """Requests that run or wait, or whose answer is not read to its end."""
        return self._num_inside

    @property
    def num_running(self) -> int:
        """Requests that are being decoded."""
        return self._num_running

    @property
    def num_waiting(self) -> int:
        """Requests whose turn has not come."""
        return len(self._waiting)

    def read_pace(self) -> ReadPace:
        """Return what times the writes of one answer."""
        return ReadPace(self._limits.slow_reader_tokens_per_s, self._limits.slow_reader_s)

    def default_max_tokens(self, num_prompt_tokens: int) -> int:
        """Return what a request gets that leaves it open: the configured number, or the room behind its prompt."""
        room = self.target_info.context_length - num_prompt_tokens
        return max(1, min(self.defaults.max_tokens, room))

    async def read(self, work: Callable[[TextTokenizer], T], num_bytes: int, field: str) -> T:
        """Return what ``work`` makes of a request's text with the target's tokenizer; see ``beside``.

        Args:
            num_bytes: of the request: messages, tools and their keys take as long to encode as text.

        Raises:
            InvalidArgument: the text cannot fit the target's context, before it is read; names ``field``. Or there is
                no tokenizer, or ``work`` raised it.
        """
        limit = self.target_info.context_length * MAX_TOKEN_BYTES + OTHER_BYTES
        if num_bytes > limit:
            raise InvalidArgument(field, f"comes in a request of {num_bytes} bytes; {limit} are the most")
        return await self.beside(partial(work, self.tokenizer), num_bytes)

    async def beside(self, work: Callable[[], T], size: int) -> T:
        """Return what ``work`` returns. Where its size is above ``MAX_SIZE_AT_ONCE`` it is done beside the event loop,
        for which all clients wait.
        """
        if size <= MAX_SIZE_AT_ONCE:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._beside, work)

    async def checked(self, grammar: Grammar | None) -> Grammar | None:
        """Return the grammar as services take it.

        Raises:
            InvalidArgument, RateLimited, TooManySessions: see ``CheckedGrammars.usable``.
        """
        if grammar is None:
            return None
        with self._rejections():
            return await self._grammars.usable(grammar)

    def check_room(self, num_requests: int = 1) -> None:
        """Raise what ``deltas`` would raise now for so many requests; before work is put into reading one.

        Raises:
            InvalidArgument: there is never room for so many; names ``n``.
            TooManySessions: with them more would run and wait than may.
            ServiceUnavailable: the gateway is draining.
        """
        running, waiting = self._limits.max_running, self._limits.max_queued
        with self._rejections():
            if self.draining:
                raise ServiceUnavailable("the gateway is draining")
            if num_requests > running + waiting:
                raise InvalidArgument("n", f"{num_requests} choices; {running + waiting} may run and wait here")
            if self._num_inside + num_requests > running + waiting:
                raise TooManySessions(f"{running} requests run and {waiting} wait; come back later")

    @contextmanager
    def _rejections(self) -> Iterator[None]:
        try:
            yield
        except SpecgateError as error:
            self.metrics.requests.rejected(error)
            audit_refusal(error)
            raise

    async def deltas(
        self, requests: Sequence[GenerationRequest], on_turn: OnTurn = lambda came_s, turn_s: None
    ) -> AsyncGenerator[tuple[int, Delta], None]:
        """Run the requests of one answer, and yield their deltas as they come, each with its request's index.

        They find room together or not at all. Each waits for a turn of its own, so many cannot lock each other out. A
        reader that is slower than the models stops the decode loops between rounds. Leaving early frees everything.

        Raises:
            InvalidArgument, TooManySessions, ServiceUnavailable: see ``check_room``.
            InvalidArgument: a request does not fit the target, or they report too many log-probabilities.
            RateLimited: the caller's key asks for more than it may.
            SpecgateError: the first failure of a request, which ends all, after the deltas before it.
        """
        self.check_room(len(requests))
        with ExitStack() as stack:
            with self._rejections():
                check_num_logprobs(requests, self._limits.max_logprobs_per_answer)
                account = stack.enter_context(charged(requests))
            describe(self.model_name, requests)
            rounds = self.metrics.rounds
            on_record = [rounds.on_record, *round_spans()]
            generations = [self.orchestrator.generate(one, on_record, rounds.on_loss) for one in account.requests]
            buffer: Buffer = asyncio.Queue(self._limits.output_buffer)
            running = [asyncio.create_task(self._run(*one, buffer, on_turn)) for one in enumerate(generations)]
            num_left = len(running)
            self._num_inside += num_left
            self._empty.clear()
            try:
                while num_left:
                    item = await buffer.get()
                    if isinstance(item, Exception):
                        raise item
                    if item is None:
                        num_left -= 1
                        self._leave(1)
                    else:
                        yield item
            finally:
                for task in running:
                    task.cancel()
                try:
                    await asyncio.wait(running)
                finally:
                    # Whoever reads may be cancelled once more meanwhile.
                    self._leave(num_left)
                    account.stats = [generation.stats for generation in generations]
                    conclude(account.stats)

    async def _run(self, index: int, generation: Generation, buffer: Buffer, on_turn: OnTurn) -> None:
        """Decode one request when its turn comes. Its last item in ``buffer`` is None, or the error that ended it."""
        end: Exception | None = None
        timer = self.metrics.requests.begin()
        self._waiting.add(timer)
        try:
            async with self._turn, aclosing(aiter(generation)) as deltas:
                with self._running(timer):
                    on_turn(timer.came_s, timer.let_in())
                    async for delta in deltas:
                        self.heard_at = time.monotonic()
                        timer.on_delta(delta)
                        await buffer.put((index, delta))
            if generation.finish_reason is None:
                end = ServiceUnavailable("the gateway was closed before the request was finished")
        except InvalidArgument as error:
            # Such as a grammar that leads nowhere: no failure of ours, so nobody is to be woken by it.
            end = error
        except Exception as error:
            timer.on_failure()
            end = for_strangers(error)
        finally:
            self._waiting.discard(timer)
            timer.end(generation.stats)
        await buffer.put(end)

    @contextmanager
    def _running(self, timer: RequestTimer) -> Iterator[None]:
        self._waiting.discard(timer)
        self._num_running += 1
        try:
            yield
        finally:
            self._num_running -= 1

    def _leave(self, num_requests: int) -> None:
        self._num_inside -= num_requests
        if self._num_inside == 0:
            self._empty.set()

    async def drain(self, timeout_s: float) -> bool:
        """Admit nobody any more; return whether the last request ended within ``timeout_s``."""
        self.draining = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True
