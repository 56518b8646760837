"""Grammars are compiled beside the event loop and the engine: however long one takes, running sessions go on."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from specgate.runtime.grammar import Grammars, GrammarState
from specgate.types import SessionSpec


class GrammarService:
    """The grammars of one service, compiled one at a time: one who sends hard ones holds up others with a grammar alone.

    Args:
        model: a folder or a hub id, for its tokenizer.
        vocab_size: of the model.
    """

    def __init__(self, model: str, vocab_size: int) -> None:
        self._grammars = Grammars(model)
        self._vocab_size = vocab_size
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")

    async def state(self, spec: SessionSpec) -> GrammarState:
        """Return the state of a session that has a grammar, behind what was emitted already.

        Raises:
            InvalidArgument: see ``Grammars.state``.
        """
        vocab_size = min(self._vocab_size, spec.vocab_size or self._vocab_size)
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, self._grammars.state, spec, vocab_size
        )
