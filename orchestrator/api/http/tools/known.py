"""The formats that are known, and which of them a chat template teaches."""

import secrets
import string
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.api.http.tools.body import Marking
from orchestrator.api.http.tools.calls import CallReader, ToolCallFormat
from orchestrator.api.http.tools.found import FoundReader
from orchestrator.api.http.tools.request import Function
from orchestrator.api.http.tools.spelled import SpelledReader, Spelling
from specgate.errors import InvalidArgument

NUM_MISTRAL_CHARACTERS = 9
"""Of an id: Mistral's templates refuse any other."""


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """Calls with arguments in JSON. See ``ToolCallFormat``.

    Args:
        marking: how calls are found.
        spelling: how required calls are written.
        markers: see ``ToolCallFormat``.
    """

    marking: Marking
    spelling: Spelling
    markers: Collection[str]

    def new_id(self) -> str:
        """See ``ToolCallFormat``."""
        return "call_" + secrets.token_hex(12)

    def grammar(self, functions: Sequence[Function], token_ids: Mapping[str, int], *, parallel: bool) -> str:
        """See ``ToolCallFormat``."""
        return self.spelling.grammar(functions, token_ids, parallel=parallel)

    def required(self) -> CallReader:
        """See ``ToolCallFormat``."""
        return SpelledReader(self.spelling)

    def free(self, names: Collection[str], *, parallel: bool) -> CallReader:
        """See ``ToolCallFormat``."""
        return FoundReader(self.marking, names, parallel=parallel)


class MistralFormat(JsonFormat):
    """Ids are short there."""

    def new_id(self) -> str:
        """See ``ToolCallFormat``."""
        letters = string.ascii_letters + string.digits
        return "".join(secrets.choice(letters) for _ in range(NUM_MISTRAL_CHARACTERS))


HERMES = JsonFormat(
    Marking("<tool_call>", closing="</tool_call>"),
    Spelling('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", separator="\n"),
    ("<tool_call>", "</tool_call>"),
)
LLAMA3 = JsonFormat(
    Marking("<|python_tag|>", bare=True),
    Spelling('{"name": "', '", "parameters": ', "}", separator=None),
    ("<|python_tag|>",),
)
MISTRAL = MistralFormat(
    Marking("[TOOL_CALLS]", named=True),
    Spelling('{"name": "', '", "arguments": ', "}", separator=", ", before="[TOOL_CALLS][", after="]"),
    ("[TOOL_CALLS]",),
)
MISTRAL_NAMED = MistralFormat(
    Marking("[TOOL_CALLS]", named=True), Spelling("[TOOL_CALLS]", "[ARGS]"), ("[TOOL_CALLS]", "[ARGS]")
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
    # The marker is also that of models which write XML behind it.
    if "<tool_call>" in template and "<function=" not in template and "<arg_key>" not in template:
        return "hermes"
    if "[TOOL_CALLS]" in template:
        return "mistral"
    return "llama3" if "<|python_tag|>" in template or '{"name": function name, "parameters"' in template else ""
