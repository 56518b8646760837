"""How many connections the HTTP API holds, in all and from one address, and which one a new one replaces."""

from collections.abc import Iterable
from typing import Protocol


class Connection(Protocol):
    """One client's connection."""

    address: str
    """The client's IP address."""

    @property
    def waits_for_client(self) -> bool:
        """Whether there is no request to answer: the client sends one, reads an answer, or does nothing."""

    def abort(self) -> None:
        """Close at once."""


class ConnectionBook:
    """Admits connections up to a limit, and half as many from one IP address.

    Over a limit a new one takes the place of the oldest that waits for its client. So a client that only holds
    connections keeps nobody out, a health check least of all.
    """

    def __init__(self, max_connections: int) -> None:
        self._max_connections = max_connections
        self._max_per_address = max(1, max_connections // 2)
        # In the order in which they came.
        self._connections: dict[Connection, None] = {}
        self._num_of: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._connections)

    def admit(self, new: Connection) -> bool:
        """Add ``new``, in the place of another one where a limit is reached; return False where all are at work."""
        rivals = self._rivals(new.address)
        if rivals is not None:
            oldest = next((one for one in rivals if one.waits_for_client), None)
            if oldest is None:
                return False
            self.remove(oldest)
            oldest.abort()
        self._connections[new] = None
        self._num_of[new.address] = self._num_of.get(new.address, 0) + 1
        return True

    def _rivals(self, address: str) -> Iterable[Connection] | None:
        """Return the connections of which one must go before ``address`` may have one; None if there is room."""
        if self._num_of.get(address, 0) >= self._max_per_address:
            return (one for one in self._connections if one.address == address)
        return self._connections if len(self) >= self._max_connections else None

    def remove(self, connection: Connection) -> None:
        """Forget a connection. Safe for one that was not admitted."""
        if connection not in self._connections:
            return
        del self._connections[connection]
        self._num_of[connection.address] -= 1
        if not self._num_of[connection.address]:
            del self._num_of[connection.address]
