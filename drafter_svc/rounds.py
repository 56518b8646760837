"""A drafter's session, whatever it is reached by: how one is made, and its rounds on the engine."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from drafter_svc.run_ahead.budget import RunAheadBudget
from drafter_svc.sources.source import Announce, SourceSession
from specgate.errors import InvalidArgument
from specgate.rpc.validate import check_token_ids
from specgate.service.served import Served
from specgate.types import DraftRequest, Proposal, SessionSpec

if TYPE_CHECKING:
    from specgate.runtime.engine.jobs import Task

MakerOf = Callable[[SessionSpec], Callable[..., SourceSession]]
"""Returns what makes the session of a specification once it is admitted."""


class DraftRounds:
    """The rounds of one session, one after the other.

    Args:
        served: what the session was opened on.
        budget: how many guesses the session may make.
        announce: sends what will be proposed after the guessed tokens. Called from any thread.
    """

    def __init__(self, served: Served, session: SourceSession, budget: RunAheadBudget, announce: Announce) -> None:
        self._session = session
        self._engine = served.engine
        self._budget = budget
        self._vocab_size = served.admission.known_vocab_size(session.spec)
        self._announce = announce

    async def warm(self) -> None:
        """Read the tokens that the session was opened with."""
        await self._engine.run(self._session.warm())

    async def draft(self, request: DraftRequest) -> Proposal:
        """Return the round's proposal.

        Raises:
            InvalidArgument: a token id is unknown, or the tokens pass the session's end.
            OutOfSync: the round does not start where the session is.
        """
        check_token_ids("round.token_ids", request.token_ids, self._vocab_size)
        if request.position + len(request.token_ids) > self._session.spec.max_length:
            raise InvalidArgument("round.token_ids", f"pass the session's {self._session.spec.max_length} tokens")
        return await self._engine.run(drafting(self._session, request, self._guess))

    def prepare(self) -> None:
        """Guess what the next round asks. Called once the answer to this round is sent."""
        if not self._session.ahead.was_announced:
            self._guess()

    def _guess(self) -> None:
        self._session.ahead.start(self._budget.share(self._session), self._engine.submit, self._announce)


def maker_of(served: Served) -> MakerOf:
    """Return how the sessions of a service are made. Torch is imported only if there is a model."""
    if not served.draft_method.has_model:
        from drafter_svc.sources.suffix_session import SuffixSession

        return lambda spec: SuffixSession
    from drafter_svc.drafter import DraftSession
    from drafter_svc.run_ahead.learned import LearnedByMode

    loaded = getattr(served, "loaded", None)
    if loaded is not None and loaded.tokenizers is not None:
        from drafter_svc.sources.retokenized import TokenizerPair
        from drafter_svc.sources.strings_session import StringsSession

        pair = TokenizerPair(*loaded.tokenizers)
        return lambda spec: partial(StringsSession, pair=pair, end_token_ids=loaded.eos_token_ids)
    learned = LearnedByMode()
    return lambda spec: partial(DraftSession, learned=learned.of(spec), method=served.draft_method)


def drafting(session: SourceSession, request: DraftRequest, guess: Callable[[], None]) -> "Task[Proposal]":
    """Draft. If the proposal was announced, call ``guess`` at once; any other one is sent before guessing starts."""
    proposal = yield from session.draft(request)
    if session.ahead.was_announced:
        guess()
    return proposal
