"""The grammars that clients ask for: each is tried once, beside the event loop, and one at a time."""

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

from orchestrator.api.keys.account import charged_if_refused
from specgate.errors import TooManySessions
from specgate.grammar_check import GrammarCheck
from specgate.types import Grammar

MAX_KNOWN = 256
"""Grammars that passed and are remembered: each of 128 tools is one. Of those that did not pass there is no end."""
MAX_WAITING = 32
"""A bad one takes two seconds, so that the last one would wait for a minute."""


class CheckedGrammars:
    """What passed, and a queue for what nobody has asked for yet. Not for several event loops."""

    def __init__(self) -> None:
        self._check = GrammarCheck()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._known: OrderedDict[Grammar, Grammar] = OrderedDict()
        self._num_waiting = 0

    async def usable(self, grammar: Grammar) -> Grammar:
        """Return the grammar as services take it.

        Raises:
            InvalidArgument: it cannot be used; the field is the place in it. It counts as a request of the caller's.
            RateLimited: the caller's key has no request left.
            TooManySessions: too many grammars wait to be tried.
        """
        if grammar in self._known:
            self._known.move_to_end(grammar)
            return self._known[grammar]
        if self._num_waiting >= MAX_WAITING:
            raise TooManySessions(f"{MAX_WAITING} grammars wait to be checked; come back later")
        self._num_waiting += 1
        try:
            with charged_if_refused():
                passed = await asyncio.get_running_loop().run_in_executor(self._thread, self._check.usable, grammar)
        finally:
            self._num_waiting -= 1
        self._known[grammar] = passed
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return passed
