"""The grammars of requests. Each is checked once, beside the event loop, one at a time."""

from collections import OrderedDict
from functools import partial

from orchestrator.api.fair_thread import FairThread
from orchestrator.api.keys.account import charged_if_refused
from orchestrator.api.keys.keyring import client_name
from specgate.grammar_check import GrammarCheck
from specgate.types import Grammar

MAX_KNOWN = 256
"""Grammars that passed and are remembered: a request may have one for each of 128 tools."""
MAX_WAITING_EACH = 32
"""Grammars of one client. A bad one takes two seconds, so the last of them waits for a minute."""
MAX_WAITING = 256
"""Grammars of all clients. Their texts take 64 MiB at most."""


class CheckedGrammars:
    """The grammars that passed, and a queue for new ones. It serves one event loop."""

    def __init__(self) -> None:
        self._check = GrammarCheck()
        self._thread = FairThread("grammar", MAX_WAITING_EACH, MAX_WAITING)
        self._known: OrderedDict[Grammar, Grammar] = OrderedDict()

    async def usable(self, grammar: Grammar) -> Grammar:
        """Return the grammar as services take it.

        Raises:
            InvalidArgument: it cannot be used; ``field`` is the place in it. It counts as a request of the caller.
            RateLimited: the caller's key has no request left.
            TooManySessions: too many grammars wait to be checked, of the caller or of all.
        """
        if grammar in self._known:
            self._known.move_to_end(grammar)
            return self._known[grammar]
        with charged_if_refused():
            passed = await self._thread.run(client_name(), partial(self._check.usable, grammar))
        self._known[grammar] = passed
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return passed
