"""How many bytes sessions send and receive, for who wants to know."""

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Traffic:
    """Serialised messages of all sessions that opened since it was asked for, both links and both directions.

    The openings, which carry the prompt, are left out; so is what HTTP/2 adds, 14 bytes a message where one is sent by
    itself.
    """

    num_bytes: int = 0
    num_messages: int = 0

    def add(self, message: Any) -> None:
        """Count one protobuf message."""
        self.num_bytes += message.ByteSize()
        self.num_messages += 1
