"""How a model writes its calls, as the rest knows it: a grammar of those it must make, and readers of its text."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.api.http.tools.request import Function


@dataclass(frozen=True, slots=True)
class Content:
    """Text that belongs to no call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of this function begins; its arguments follow."""

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
        """Return what ``text`` made known."""
        ...

    def finish(self) -> list[Event]:
        """Return what is left when no more text follows."""
        ...


class ToolCallFormat(Protocol):
    """One way to write calls."""

    @property
    def markers(self) -> Collection[str]:
        """Parts of calls that may be tokens of their own. Readers must see them, also where they are special."""
        ...

    def new_id(self) -> str:
        """Return the id of a new call."""
        ...

    def grammar(self, functions: Sequence[Function], token_ids: Mapping[str, int], *, parallel: bool) -> str:
        """Return the grammar, in llguidance's Lark, of one call or more with arguments as the functions want them.

        Args:
            token_ids: of those markers that are tokens.
        """
        ...

    def required(self) -> CallReader:
        """Return a reader of texts that follow the grammar: it tells arguments as they come."""
        ...

    def free(self, names: Collection[str], *, parallel: bool) -> CallReader:
        """Return a reader of any text. A call is told when it is complete; what is none of these functions is text."""
        ...
