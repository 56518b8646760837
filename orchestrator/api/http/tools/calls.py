"""What a text with calls consists of, and a reader that finds it."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    """Text that belongs to no call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of this function begins. Its arguments follow."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the arguments of the call that began last, in the model's own spelling."""

    text: str


Event = Content | CallStart | Arguments


class CallReader(Protocol):
    """Reads one answer. What it finds does not depend on where its text is cut."""

    @property
    def is_in_call(self) -> bool:
        """Whether a call has begun, and not ended."""
        ...

    def push(self, text: str) -> list[Event]:
        """Return the events that ``text`` completes."""
        ...

    def finish(self) -> list[Event]:
        """Return what is left when no more text follows."""
        ...
