"""One-time tokens: the right to open a session on a service whose sessions are handed out elsewhere."""

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from specgate.errors import LeaseRefused

OPEN_WITHIN_S = 5.0
TOKEN_BYTES = 16


class IssuedLease:
    """One token, and whether it is claimed and ended. Made by ``LeaseBook.issued``."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self.claimed = asyncio.Event()
        self.ended = asyncio.Event()

    async def wait_ended(self, open_within_s: float = OPEN_WITHIN_S) -> None:
        """Return when the session has ended, or when none was opened within ``open_within_s`` seconds."""
        try:
            async with asyncio.timeout(open_within_s):
                await self.claimed.wait()
        except TimeoutError:
            # It may have been claimed in the same turn of the loop in which the time ran out.
            if not self.claimed.is_set():
                return
        await self.ended.wait()


class LeaseBook:
    """The tokens that sessions may be opened with. All calls come from one event loop."""

    def __init__(self) -> None:
        self._unclaimed: dict[str, IssuedLease] = {}

    @contextmanager
    def issued(self) -> Iterator[IssuedLease]:
        """Issue one token. An unclaimed token becomes void when the block is left."""
        lease = IssuedLease()
        self._unclaimed[lease.token] = lease
        try:
            yield lease
        finally:
            self._unclaimed.pop(lease.token, None)

    @contextmanager
    def claimed(self, token: str) -> Iterator[None]:
        """Spend ``token``; the lease ends with the block.

        Raises:
            LeaseRefused: the token is missing, unknown, void or spent.
        """
        lease = self._unclaimed.pop(token, None)
        if lease is None:
            problem = "is unknown, void or spent" if token else "is missing"
            raise LeaseRefused(f"the session's lease token {problem}")
        lease.claimed.set()
        try:
            yield
        finally:
            lease.ended.set()
