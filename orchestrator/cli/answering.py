"""What answers prompts: services that the command starts, named services, or a running system."""

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.segment import Segment

from orchestrator.decode.request import Delta, GenerationRequest, GenerationStats
from orchestrator.decode.text import TextTokenizer
from orchestrator.local.launch import Capacity, Pair, open_pair
from orchestrator.policy.gates import DEFAULT_GATE
from orchestrator.terminal.prompts import Prompt, with_token_ids
from orchestrator.terminal.render import DeltaPainter, Painter
from orchestrator.terminal.served import delta_of, params_of, stats_of
from orchestrator.terminal.system_options import SystemOptions
from specgate.client import ChatMessage, Client, Params
from specgate.errors import InvalidArgument

if TYPE_CHECKING:
    from orchestrator.cli.socket_client import SocketClient

OnDelta = Callable[[Delta], None]
KEY_VARIABLE = "SPECGATE_KEY"
"""Name of the environment variable with the key: everybody on the machine can read a command line."""


class Paints(Protocol):
    """Colours one answer, delta by delta."""

    def paint(self, delta: Delta) -> list[Segment]: ...

    def finish(self) -> list[Segment]: ...


class Answerer(Protocol):
    """Answers prompts, many at a time."""

    @property
    def tokenizer(self) -> TextTokenizer | None:
        """The target's, where it is at hand."""
        ...

    def painter(self, prompt: Prompt) -> Paints: ...

    async def answer(self, prompt: Prompt, on_delta: OnDelta) -> GenerationStats:
        """Call ``on_delta`` with each delta of the answer; return its counts. Cancelling frees its sessions.

        Raises:
            SpecgateError: the prompt is refused, or the answer broke off.
        """
        ...


class PairAnswerer:
    """Services of the command's own, or named ones."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    @property
    def tokenizer(self) -> TextTokenizer | None:
        """See ``Answerer``."""
        return self._pair.tokenizer

    def painter(self, prompt: Prompt) -> Paints:
        """See ``Answerer``: each token in its own colour."""
        if self.tokenizer is None:
            return Painter(None)
        try:
            request = with_token_ids(prompt, self.tokenizer)
        except InvalidArgument:
            # There will be no answer; ``answer`` says why.
            return Painter(None)
        return Painter(self.tokenizer.incremental(request.prompt_token_ids))

    async def answer(self, prompt: Prompt, on_delta: OnDelta) -> GenerationStats:
        """See ``Answerer``."""
        request = with_token_ids(prompt, self.tokenizer)
        if prompt.fits:
            request = self._fitted(request)
        async with self._pair.orchestrator.generate(request) as generation:
            async for delta in generation:
                on_delta(delta)
            return generation.stats

    def _fitted(self, request: GenerationRequest) -> GenerationRequest:
        info = self._pair.orchestrator.target_info
        num_tokens, limit = len(request.prompt_token_ids), min(info.context_length, info.kv_tokens)
        if num_tokens >= limit:
            raise InvalidArgument("messages", f"have {num_tokens} tokens; the target holds {limit} with its answer")
        return replace(request, max_tokens=min(request.max_tokens, limit - num_tokens))


class ServerAnswerer:
    """A running system, over its gRPC API or its WebSocket.

    Args:
        says_gate: whether the command line names a gate; else the system's own holds.
    """

    tokenizer = None

    def __init__(self, client: "Client | SocketClient", *, says_gate: bool) -> None:
        self._client = client
        self._says_gate = says_gate

    def painter(self, prompt: Prompt) -> Paints:
        """See ``Answerer``: each delta in the colour of its end."""
        return DeltaPainter(shows_ids=prompt.token_ids is not None)

    async def answer(self, prompt: Prompt, on_delta: OnDelta) -> GenerationStats:
        """See ``Answerer``."""
        params = self._params(prompt)
        try:
            return await self._asked(prompt, params, on_delta)
        except InvalidArgument as error:
            if not prompt.fits or error.field != "max_tokens":
                raise
        # The system has less room than that; its own limit fits the room.
        return await self._asked(prompt, replace(params, max_tokens=None), on_delta)

    async def _asked(self, prompt: Prompt, params: Params, on_delta: OnDelta) -> GenerationStats:
        stats = GenerationStats()
        async with aclosing(self._client.stream(_as_asked(prompt), params)) as deltas:
            async for delta in deltas:
                on_delta(delta_of(delta))
                if delta.stats is not None:
                    stats = stats_of(delta.stats)
        return stats

    def _params(self, prompt: Prompt) -> Params:
        request = prompt.request
        leaves_gate = not self._says_gate and request.gate is DEFAULT_GATE
        return replace(
            params_of(request),
            gate=None if leaves_gate else request.gate,
            gate_threshold=request.gate_threshold,
        )


def _as_asked(prompt: Prompt) -> str | Sequence[int] | Sequence[ChatMessage]:
    if prompt.messages:
        return prompt.messages
    return prompt.token_ids or () if prompt.text is None else prompt.text


@asynccontextmanager
async def open_answerer(
    system: SystemOptions, *, says_gate: bool, with_draft: bool, capacity: Capacity, log: Console
) -> AsyncIterator[Answerer]:
    """Yield what answers prompts, and end what was started for it.

    Raises:
        SpecgateError: see ``open_pair``; of a running system nothing is known before the first prompt.
    """
    key = os.environ.get(KEY_VARIABLE) or None
    if system.socket_url is not None:
        from orchestrator.cli.socket_client import SocketClient

        yield ServerAnswerer(SocketClient(system.socket_url, system.server_tls, key), says_gate=says_gate)
        return
    if system.server is not None:
        async with Client(system.endpoint, system.server_tls, key) as client:
            yield ServerAnswerer(client, says_gate=says_gate)
        return
    async with open_pair(system, with_draft=with_draft, capacity=capacity, log=log) as pair:
        yield PairAnswerer(pair)
