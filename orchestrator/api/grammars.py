"""The grammars that clients ask for: each is tried once, beside the event loop, and one at a time."""

from collections import OrderedDict
from functools import partial

from orchestrator.api.fair_thread import FairThread
from orchestrator.api.keys.account import charged_if_refused
from orchestrator.api.keys.keyring import client_name
from specgate.grammar_check import GrammarCheck
from specgate.types import Grammar

MAX_KNOWN = 256
"""Grammars that passed and are remembered: each of 128 tools is one. Of those that did not pass there is no end."""
MAX_WAITING_EACH = 32
"""Of one client. A bad one takes two seconds, so that its own last one would wait for a minute."""
MAX_WAITING = 256
"""Of all clients: their texts take 64 MiB at the most."""


class CheckedGrammars:
    """What passed, and a queue for what nobody has asked for yet. Not for several event loops."""

    def __init__(self) -> None:
        self._check = GrammarCheck()
        self._thread = FairThread("grammar", MAX_WAITING_EACH, MAX_WAITING)
        self._known: OrderedDict[Grammar, Grammar] = OrderedDict()

    async def usable(self, grammar: Grammar) -> Grammar:
        """Return the grammar as services take it.

        Raises:
            InvalidArgument: it cannot be used; the field is the place in it. It counts as a request of the caller's.
            RateLimited: the caller's key has no request left.
            TooManySessions: too many grammars wait to be tried, of the caller's or of all.
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
