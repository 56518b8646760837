"""The facade that the front doors use: one orchestrator, many generations."""

from collections.abc import AsyncIterator
from typing import Self

from orchestrator.ports import Pool
from orchestrator.request import Delta, GenerationRequest, GenerationStats
from orchestrator.text import TextTokenizer
from orchestrator.timeouts import Timeouts
from specgate.types import FinishReason, ModelInfo


class Generation:
    """One running request: iterate it for its deltas.

    Leaving the iteration early, ``aclose()`` and leaving ``async with`` free the sessions on both services.
    """

    @property
    def stats(self) -> GenerationStats:
        """Counted so far; complete once the iteration has ended."""
        raise NotImplementedError

    @property
    def finish_reason(self) -> FinishReason | None:
        """None until the last delta was yielded."""
        raise NotImplementedError

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All tokens emitted so far."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        """All text emitted so far."""
        raise NotImplementedError

    def __aiter__(self) -> AsyncIterator[Delta]:
        raise NotImplementedError

    async def aclose(self) -> None:
        """Cancel and free both sessions. Safe to call twice."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Orchestrator:
    """Pools of services, the models behind them, and the generations that run on them."""

    target_info: ModelInfo
    draft_info: ModelInfo | None
    tokenizer: TextTokenizer | None

    @classmethod
    async def connect(
        cls,
        verifiers: Pool,
        drafters: Pool | None = None,
        tokenizer: TextTokenizer | None = None,
        *,
        tls: object | None = None,
        timeouts: Timeouts = Timeouts(),
    ) -> "Orchestrator":
        """Ask one service of each pool what it serves, and check that the two fit.

        A drafter pool that is down is no error: the target decodes alone until one is there.

        Raises:
            ServiceUnavailable: no verifier answers.
            TokenizerMismatch: the two models do not share their token ids; names the component.
        """
        raise NotImplementedError

    def generate(self, request: GenerationRequest) -> Generation:
        """Start one generation. Nothing is sent before its first delta is asked for.

        Raises:
            InvalidArgument: the request does not fit the target; the message names the field.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Cancel what runs and close all channels. Safe to call twice."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
