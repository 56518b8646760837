"""What an answer may be: a grammar that it follows from its first token to its end."""

from dataclasses import dataclass
from enum import StrEnum

from specgate.errors import InvalidArgument

MAX_GRAMMAR_CHARACTERS = 1 << 18


class GrammarKind(StrEnum):
    """How a grammar is written. ``CHOICE`` is a JSON array of the texts that an answer may be."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    LARK = "lark"


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar as text. Whether it can be used is checked by ``specgate.grammar``.

    Raises:
        InvalidArgument: the text is empty or too long.
    """

    kind: GrammarKind
    text: str

    def __post_init__(self) -> None:
        if not self.text:
            raise InvalidArgument(f"grammar.{self.kind}", "is empty")
        if len(self.text) > MAX_GRAMMAR_CHARACTERS:
            problem = f"has {len(self.text)} characters; {MAX_GRAMMAR_CHARACTERS} are the most"
            raise InvalidArgument(f"grammar.{self.kind}", problem)
