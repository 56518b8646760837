"""The protocols that the decode loop stands on, and the pool they get their services from."""

from collections.abc import AsyncGenerator, Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from specgate.errors import InvalidArgument
from specgate.types import (
    DraftRequest,
    FollowUps,
    Proposal,
    RunningDraft,
    SessionSpec,
    TokenIds,
    Verdict,
    VerifyRequest,
)

OnAnnouncement = Callable[[], None]
"""Called when more may be ``expected`` of a drafter, or its running draft has changed."""


class Drafter(Protocol):
    """One session on a drafter."""

    async def draft(self, request: DraftRequest) -> Proposal:
        """Return a proposal of up to ``request.gamma`` tokens; an empty one without a drafter, or without evidence.

        ``request.gamma`` 0 only sends the committed tokens, and returns an empty proposal without waiting. An announced
        proposal may be returned at once, while the request is sent in the background.

        Raises:
            SpecgateError: the session is lost; nothing but ``close()`` may follow.
        """
        ...

    def announced(self, request: DraftRequest) -> Proposal | None:
        """Return what ``draft(request)`` would return, if that is known by now. Never waits."""
        ...

    def expected(self, position: int) -> Collection[TokenIds]:
        """Return the token sequences that may be committed after ``position`` and have an announced proposal, the
        likeliest first. They are those of one round or of several.
        """
        ...

    @property
    def running(self) -> RunningDraft | None:
        """The last running draft that arrived."""
        ...

    def listen(self, on_announcement: OnAnnouncement) -> None:
        """Call ``on_announcement`` from now on."""
        ...

    async def close(self) -> None:
        """Give the session back. Safe to call twice."""
        ...


class Verifier(Protocol):
    """One session on a verifier."""

    def verify(self, request: VerifyRequest) -> AsyncGenerator[Verdict, None]:
        """Yield the verdicts of one round; the one with ``last`` set ends it.

        Raises:
            SpecgateError: the session is lost; nothing but ``close()`` may follow.
        """
        ...

    def expect(self, follow_ups: FollowUps) -> None:
        """Send the rounds that may follow the pending one. Never waits and never raises.

        Where the last verdict names one of them, that round runs already: ``verify`` yields its verdicts.
        """
        ...

    def run_on(self, draft: RunningDraft) -> None:
        """Send a running draft, in place of the one before. Never waits and never raises."""
        ...

    async def close(self) -> None:
        """Give the session back. Safe to call twice."""
        ...


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to one session at ``endpoint`` (HOST:PORT), with a one-time token where the pool uses them."""

    endpoint: str
    token: str = ""


class TextTooLong(InvalidArgument):
    """A drafter cannot hold the text, nor be given its end alone. Another drafter may."""


class DrafterDialer(Protocol):
    """Opens one drafter session."""

    async def open_drafter(self, lease: Lease, spec: SessionSpec) -> tuple[Drafter, int]:
        """Return the session as soon as its memory is reserved; the prefill goes on in the background.

        With it comes the length of the text up to which it can draft, in tokens. A drafter that holds fewer tokens than
        the text has is given the text's end.

        Raises:
            TextTooLong: it is of a release that cannot be given the end alone.
            SpecgateError: it could not be opened, or not in time.
        """
        ...

    def cost_us(self, endpoint: str, num_sessions: int) -> float:
        """See ``SessionCost``."""
        ...


class VerifierDialer(Protocol):
    """Opens one verifier session."""

    async def open_verifier(self, lease: Lease, spec: SessionSpec) -> Verifier:
        """Return the session as soon as its memory is reserved; the prefill goes on in the background.

        Raises:
            SpecgateError: it could not be opened, or not in time.
        """
        ...


SessionCost = Callable[[str, int], float]
"""Returns what one more session costs at an endpoint that has so many of ours, in any unit."""


class Pool(Protocol):
    """Hands out the right to sessions. Nothing else knows where a service runs."""

    async def lease(self, cost: SessionCost | None = None) -> Lease:
        """Return a lease on a healthy service, where one session more costs least if the pool can choose.

        Raises:
            ServiceUnavailable: none is healthy.
            TooManySessions: all are full.
        """
        ...

    def release(self, lease: Lease, *, failed: bool = False) -> None:
        """Give a lease back; ``failed``: the service did not answer as it should."""
        ...

    async def close(self) -> None:
        """Stop the pool's background work. Safe to call twice."""
        ...
