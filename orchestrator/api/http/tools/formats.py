"""The formats in which models write calls, and which of them a chat template teaches."""

import secrets
import string
from collections.abc import Collection
from dataclasses import dataclass

from orchestrator.api.http.tools.calls import CallReader
from orchestrator.api.http.tools.found import FoundReader
from orchestrator.api.http.tools.marked import Marking
from orchestrator.api.http.tools.spelled import SpelledReader, Spelling
from specgate.errors import InvalidArgument

NUM_MISTRAL_CHARACTERS = 9
"""Of an id: Mistral's templates refuse any other."""


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """One way to write calls.

    Args:
        marking: how calls are found in any text.
        spelling: how required calls are written.
        markers: parts of calls that may be tokens of their own. Readers must see them, also where they are special.
        has_short_ids: whether an id has ``NUM_MISTRAL_CHARACTERS``.
    """

    marking: Marking
    spelling: Spelling
    markers: Collection[str]
    has_short_ids: bool = False

    def new_id(self) -> str:
        """Return the id of a new call."""
        if not self.has_short_ids:
            return "call_" + secrets.token_hex(12)
        letters = string.ascii_letters + string.digits
        return "".join(secrets.choice(letters) for _ in range(NUM_MISTRAL_CHARACTERS))

    def required(self) -> CallReader:
        """Return a reader of texts that follow the grammar. It returns arguments as they come."""
        return SpelledReader(self.spelling)

    def free(self, names: Collection[str], *, parallel: bool) -> CallReader:
        """Return a reader of any text. It returns a call once it is complete; what calls none of ``names`` is text."""
        return FoundReader(self.marking, names, parallel=parallel)


HERMES = ToolCallFormat(
    Marking("<tool_call>", closing="</tool_call>"),
    Spelling('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", separator="\n"),
    ("<tool_call>", "</tool_call>"),
)
LLAMA3 = ToolCallFormat(
    Marking("<|python_tag|>", bare=True),
    Spelling('{"name": "', '", "parameters": ', "}", separator=None),
    ("<|python_tag|>",),
)
MISTRAL = ToolCallFormat(
    Marking("[TOOL_CALLS]", named=True),
    Spelling('{"name": "', '", "arguments": ', "}", separator=", ", before="[TOOL_CALLS][", after="]"),
    ("[TOOL_CALLS]",),
    has_short_ids=True,
)
MISTRAL_NAMED = ToolCallFormat(
    Marking("[TOOL_CALLS]", named=True),
    Spelling("[TOOL_CALLS]", "[ARGS]"),
    ("[TOOL_CALLS]", "[ARGS]"),
    has_short_ids=True,
)


def format_of(template: str, setting: str) -> ToolCallFormat:
    """Return the format of the served model.

    Args:
        template: its chat template.
        setting: a format's name, or ``auto``: what the template teaches.

    Raises:
        InvalidArgument: the template knows no tools, or a format that is not known here.
    """
    if "tools" not in template:
        raise InvalidArgument("tools", "the served model's chat template knows none")
    name = _taught(template) if setting == "auto" else setting
    if name == "mistral":
        return MISTRAL_NAMED if "[ARGS]" in template else MISTRAL
    if name in ("hermes", "llama3"):
        return HERMES if name == "hermes" else LLAMA3
    problem = "the served model writes calls in a form that is not known here; see gateway.tool_call_format"
    raise InvalidArgument("tools", problem)


def _taught(template: str) -> str:
    # Models that write XML behind it have the same marker.
    if "<tool_call>" in template and "<function=" not in template and "<arg_key>" not in template:
        return "hermes"
    if "[TOOL_CALLS]" in template:
        return "mistral"
    return "llama3" if "<|python_tag|>" in template or '{"name": function name, "parameters"' in template else ""
