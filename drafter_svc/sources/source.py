"""What a source of drafts is to the service: sessions that draft, and that may announce what they will draft."""

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from specgate.types import Announcement, DraftRequest, Proposal, SessionSpec

Work = Generator[Any, Any, Proposal]
"""Yields the forwards that it needs, if any, and returns a proposal."""
Submit = Callable[[Any], "Future[Any]"]
"""Queues a task on the source's engine, from any thread."""
Announce = Callable[[Announcement], None]
"""Told, from any thread, what will be proposed behind the tokens that were guessed."""


class LookAhead(Protocol):
    """A session's guesses of what comes next."""

    was_announced: bool
    """Whether the last round's proposal was: then nobody waits for the answer, unless the two crossed."""

    def start(self, num_rows: int, submit: Submit, announce: Announce | None = None) -> None:
        """Prepare what may be asked next, with up to ``num_rows`` guesses where guesses cost forwards."""
        ...


class SourceSession(Protocol):
    """One session on a source. What it drafts is a function of the committed tokens, and of the round's number."""

    spec: SessionSpec

    @property
    def ahead(self) -> LookAhead: ...

    @property
    def last_proposal(self) -> Sequence[int]:
        """Draft tokens that are not committed yet."""
        ...

    def warm(self) -> Work:
        """Read the committed tokens."""
        ...

    def draft(self, request: DraftRequest) -> Work:
        """Follow the target, then draft up to ``request.gamma`` tokens; none where there is nothing to draft from.

        Raises:
            OutOfSync: the round does not go on where the session is.
        """
        ...

    def free(self) -> None:
        """Give back what the session holds."""
        ...
