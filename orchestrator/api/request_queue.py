"""What both APIs stand on: one orchestrator, so many requests at a time, so many more that wait, no more.

A reader that is slower than ``ReadPace`` allows is cut off.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager
from functools import partial
from typing import TypeVar

from orchestrator.api.grammars import CheckedGrammars
from orchestrator.api.keys.account import audit_refusal, charged
from orchestrator.api.metrics.gateway import GatewayMetrics
from orchestrator.api.metrics.requests import RequestTimer
from orchestrator.api.read_pace import ReadPace
from orchestrator.api.settings.settings import Defaults, GatewaySettings
from orchestrator.api.traces import conclude, describe, round_spans
from orchestrator.api.turns import RunningRequest, Turn
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
        self._num_inside = 0
        self._num_running = 0
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
        """Raise what ``admitted`` would raise now for so many requests; before work is put into reading one.

        Raises:
            InvalidArgument: there is never room for so many; names ``n``.
            TooManySessions: with them more would run and wait than may.
            ServiceUnavailable: the gateway is draining.
        """
        with self._rejections():
            self._check_room(num_requests)

    @contextmanager
    def _rejections(self) -> Iterator[None]:
        try:
            yield
        except SpecgateError as error:
            self.metrics.requests.rejected(error)
            audit_refusal(error)
            raise

    def _check_room(self, num_requests: int) -> None:
        if self.draining:
            raise ServiceUnavailable("the gateway is draining")
        running, waiting = self._limits.max_running, self._limits.max_queued
        if num_requests > running + waiting:
            raise InvalidArgument("n", f"asks for {num_requests} choices; {running + waiting} may run and wait here")
        if self._num_inside + num_requests > running + waiting:
            raise TooManySessions(f"{running} requests run and {waiting} wait; come back later")

    @asynccontextmanager
    async def admitted(self, request: GenerationRequest) -> AsyncIterator[RunningRequest]:
        """Check the request, wait for its turn, and free everything when the block is left.

        Raises:
            InvalidArgument, TooManySessions, ServiceUnavailable: see ``reserved``.
        """
        with self.reserved([request]) as turns:
            async with turns[0].taken() as running:
                yield running

    @contextmanager
    def reserved(self, requests: Sequence[GenerationRequest]) -> Iterator[list["Turn"]]:
        """Check requests that belong together, and make room for all of them or for none. Each waits for its own turn.

        Nobody holds a turn while it waits for another one, so many cannot lock each other out. A place is given back
        when its turn is over, all that are left when the block is.

        Raises:
            InvalidArgument: a request does not fit the target, or they tell too many log-probabilities; or see
                ``check_room``.
            TooManySessions, ServiceUnavailable: see ``check_room``.
            RateLimited: the caller's key asks for more than it may.
        """
        self.check_room(len(requests))
        with self._rejections():
            _check_num_logprobs(requests, self._limits.max_logprobs_per_answer)
        with ExitStack() as stack:
            with self._rejections():
                account = stack.enter_context(charged(requests))
            describe(self.model_name, requests)
            turns = [self._turn_of(request) for request in account.requests]
            self._num_inside += len(turns)
            self._empty.clear()
            try:
                yield turns
            finally:
                for turn in turns:
                    turn.leave()
                account.stats = [turn.stats for turn in turns]
                conclude(account.stats)

    def _turn_of(self, request: GenerationRequest) -> Turn:
        rounds, timer = self.metrics.rounds, self.metrics.requests.begin()
        generation = self.orchestrator.generate(request, [rounds.on_record, *round_spans()], rounds.on_loss)
        return Turn(generation, self._run, self._leave, timer)

    @asynccontextmanager
    async def _run(self, generation: Generation, timer: RequestTimer) -> AsyncIterator[RunningRequest]:
        def on_delta(delta: Delta) -> None:
            self.heard_at = time.monotonic()
            timer.on_delta(delta)

        request = RunningRequest(generation, self._limits, on_delta, timer.on_failure)
        async with self._turn, aclosing(request) as running:
            self._num_running += 1
            timer.let_in()
            try:
                yield running
            finally:
                self._num_running -= 1

    def _leave(self) -> None:
        self._num_inside -= 1
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


def _check_num_logprobs(requests: Sequence[GenerationRequest], most: int) -> None:
    """Raise InvalidArgument unless the choices of one answer tell ``most`` log-probabilities or fewer."""
    of_prompts = sum(request.num_prompt_logprobs for request in requests)
    behind_them = sum(request.num_logprobs for request in requests)
    if of_prompts + behind_them > most:
        field = "prompt_logprobs" if of_prompts > behind_them else "logprobs"
        asked = f"{of_prompts + behind_them} log-probabilities in {len(requests)} choices"
        raise InvalidArgument(field, f"asks for {asked}; gateway.max_logprobs_per_answer allows {most}")
