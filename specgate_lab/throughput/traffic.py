"""How many bytes sessions send and receive."""

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Traffic:
    """Serialised messages of all sessions whose calls are ``counted``, both links and both directions.

    The openings, which carry the prompt, are left out; so is what HTTP/2 adds, 14 bytes a message where one is sent by
    itself.
    """

    num_bytes: int = 0
    num_messages: int = 0

    def counted(self, call: Any) -> "CountedCall":
        """Return a call that counts here; see ``links.WrapCall``."""
        return CountedCall(call, self)

    def add(self, message: Any) -> None:
        """Count one protobuf message."""
        self.num_bytes += message.ByteSize()
        self.num_messages += 1


class CountedCall:
    """A session's call that counts all messages but the first of each direction, which open the session."""

    def __init__(self, call: Any, traffic: Traffic) -> None:
        self._call = call
        self._traffic = traffic
        self._has_opened = self._was_opened = False

    async def write(self, message: Any) -> None:
        """Write as the call does."""
        if self._has_opened:
            self._traffic.add(message)
        self._has_opened = True
        await self._call.write(message)

    async def read(self) -> Any:
        """Read as the call does; the end of a stream is no message."""
        message = await self._call.read()
        if self._was_opened and hasattr(message, "ByteSize"):
            self._traffic.add(message)
        self._was_opened = True
        return message

    def cancel(self) -> bool:
        """Cancel as the call does."""
        return bool(self._call.cancel())
