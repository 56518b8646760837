"""Grammars are compiled on a thread of their own: however long one takes, running sessions continue."""

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from specgate.errors import InvalidArgument
from specgate.grammar_check import GrammarCheck
from specgate.runtime.grammar import Grammars, GrammarState
from specgate.types import SessionSpec

STACK_BYTES = 512 << 20
"""More than a grammar had when it was checked. A stack takes only the memory that it uses."""

_log = logging.getLogger(__name__)


class GrammarService:
    """The grammars of one service, compiled one at a time: a slow one delays only other sessions with a grammar.

    Args:
        model: a folder, a hub id or a GGUF file, for its tokenizer.
        vocab_size: of the model.
        tokenizer_of_file: see ``load_tokenizer``.
    """

    def __init__(self, model: str, vocab_size: int, tokenizer_of_file: str | None = None) -> None:
        self._grammars = Grammars(model, GrammarCheck().usable, tokenizer_of_file)
        self._vocab_size = vocab_size
        self._thread = _deep_thread()

    def prepare(self) -> None:
        """Load what all grammars need, if the model can have grammars. Before the service serves, on any thread."""
        with suppress(InvalidArgument):
            self._grammars.prepare()

    async def state(self, spec: SessionSpec, *, is_needed: bool) -> GrammarState | None:
        """Return the state of a session's grammar after its emitted tokens.

        None if it cannot be used and is not needed: a draft that ignores it is a worse guess, never a wrong text.

        Raises:
            InvalidArgument: see ``Grammars.state``.
        """
        vocab_size = min(self._vocab_size, spec.vocab_size or self._vocab_size)
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, self._grammars.state, spec, vocab_size)
        except InvalidArgument as error:
            if is_needed:
                raise
            _log.info("a session is drafted for without its grammar: %s", error)
            return None


def _deep_thread() -> ThreadPoolExecutor:
    before = threading.stack_size(STACK_BYTES)
    try:
        executor = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        # The thread starts with its first work and gets the stack size that is set then.
        executor.submit(bool).result()
    finally:
        threading.stack_size(before)
    return executor
