"""A drafter's sessions whatever they are reached by: how one is made, and its rounds on the engine."""

from collections.abc import Callable
from functools import partial
from typing import Any

from drafter_svc.run_ahead.budget import RunAheadBudget
from drafter_svc.sources.source import Announce, SourceSession, Work
from specgate.errors import InvalidArgument
from specgate.rpc.validate import check_token_ids
from specgate.types import DraftRequest, Proposal, SessionSpec

MakerOf = Callable[[SessionSpec], Callable[..., SourceSession]]
"""Returns what makes the session of a specification, when it has been admitted."""


class DraftRounds:
    """One session's rounds, one after the other.

    Args:
        served: what it was opened on.
        budget: how much it may guess ahead.
        announce: told, from any thread, what will be proposed behind the tokens that were guessed.
    """

    def __init__(self, served: Any, session: SourceSession, budget: RunAheadBudget, announce: Announce) -> None:
        self._session = session
        self._engine = served.engine
        self._budget = budget
        self._vocab_size = served.known_vocab_size(session.spec)
        self._guess = partial(session.ahead.start, submit=served.engine.submit, announce=announce)

    async def warm(self) -> None:
        """Read the tokens that the session was opened with."""
        await self._engine.run(self._session.warm())

    async def draft(self, request: DraftRequest) -> Proposal:
        """Return the round's proposal.

        Raises:
            InvalidArgument: a token id is unknown, or the tokens pass the session's end.
            OutOfSync: the round does not go on where the session is.
        """
        self._check(request)
        guess = partial(self._guess, self._budget.share(self._session))
        proposal: Proposal = await self._engine.run(drafting(self._session, request, guess))
        return proposal

    def prepare(self) -> None:
        """Guess what the next round asks, once the answer to this one is on its way."""
        if not self._session.ahead.was_announced:
            self._guess(self._budget.share(self._session))

    def _check(self, request: DraftRequest) -> None:
        check_token_ids("round.token_ids", request.token_ids, self._vocab_size)
        if request.position + len(request.token_ids) > self._session.spec.max_length:
            raise InvalidArgument("round.token_ids", f"pass the session's {self._session.spec.max_length} tokens")


def maker_of(served: Any) -> MakerOf:
    """Return how the sessions of a service are made; torch is imported only where there is a model."""
    if not served.draft_method.has_model:
        from drafter_svc.sources.suffix_session import SuffixSession

        return lambda spec: SuffixSession
    from drafter_svc.drafter import DraftSession
    from drafter_svc.run_ahead.sharpness import SharpnessByMode

    sharpness = SharpnessByMode()
    return lambda spec: partial(DraftSession, sharpness=sharpness.of(spec.sampling), method=served.draft_method)


def drafting(session: SourceSession, request: DraftRequest, guess: Callable[[], None]) -> Work:
    """Draft, and ``guess`` on at once where the answer was announced; any other one goes out before guessing begins."""
    proposal = yield from session.draft(request)
    if session.ahead.was_announced:
        guess()
    return proposal
