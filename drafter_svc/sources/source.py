"""What a draft source is to the service: sessions that draft, and that may announce what they will propose."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from specgate.errors import OutOfSync
from specgate.types import Ahead, DraftRequest, Proposal, SessionSpec

if TYPE_CHECKING:
    from specgate.runtime.engine.jobs import Task

Submit = Callable[["Task[None]"], "Future[Any]"]
"""Queues a task on the source's engine. Called from any thread."""
Announce = Callable[[Ahead], None]
"""Sends what nobody asked for. Called from any thread."""


class LookAhead(Protocol):
    """A session's guesses of what comes next."""

    was_announced: bool
    """Whether the last round's proposal was announced. Then nobody waits for the answer, unless the two crossed."""

    def start(self, num_rows: int, submit: Submit, announce: Announce | None = None) -> None:
        """Prepare what the next round may ask, with up to ``num_rows`` guesses if guesses cost forwards."""
        ...


class SourceSession(Protocol):
    """One session on a source. What it drafts is a function of the committed tokens and of the round's number."""

    spec: SessionSpec

    @property
    def ahead(self) -> LookAhead: ...

    @property
    def last_proposal(self) -> Sequence[int]:
        """Draft tokens that are not committed yet."""
        ...

    def warm(self) -> "Task[Proposal]":
        """Read the committed tokens."""
        ...

    def draft(self, request: DraftRequest) -> "Task[Proposal]":
        """Follow the target, then draft up to ``request.gamma`` tokens; none if there is nothing to draft from.

        Raises:
            OutOfSync: the round does not start where the session is.
        """
        ...

    def free(self) -> None:
        """Give back what the session holds."""
        ...


class RoundOrder:
    """Checks that rounds follow each other, and counts the committed tokens.

    Args:
        num_committed: tokens that the session was opened with.
    """

    def __init__(self, num_committed: int) -> None:
        self.num_committed = num_committed
        self._last_round = -1

    def begin(self, request: DraftRequest) -> None:
        """Count the tokens of a round as committed.

        Raises:
            OutOfSync: the round starts from another length, or its number was drafted for before. The number keys the
                draft's randomness.
        """
        if request.round < self._last_round + (request.gamma > 0):
            raise OutOfSync(f"round {request.round} comes after round {self._last_round}")
        if request.gamma:
            self._last_round = request.round
        if request.position != self.num_committed:
            raise OutOfSync(f"the round starts at {request.position}, the session is at {self.num_committed}")
        self.num_committed += len(request.token_ids)
