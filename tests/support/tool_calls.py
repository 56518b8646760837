"""Functions to call, a tokenizer that has the marks of a format as tokens of any kind, a target that says a text."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from orchestrator.api.http.tools.calls import Arguments, CallStart, Content, Event
from orchestrator.api.http.tools.formats import HERMES, LLAMA3, MISTRAL, MISTRAL_NAMED, ToolCallFormat

TEMPLATES = Path(__file__).parent / "chat_templates"
FORMATS = {"hermes": HERMES, "llama3": LLAMA3, "mistral": MISTRAL, "mistral_named": MISTRAL_NAMED}
END = "<|end|>"
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Tells it", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now"}},
]
NAMES = frozenset({"weather", "now"})


def template(name: str) -> str:
    """The chat template of a format."""
    if name == "mistral_named":
        return "{#- Calls are [TOOL_CALLS]name[ARGS]{...} -#}" + template("mistral")
    return (TEMPLATES / f"{name}.jinja").read_text()


def byte_tokenizer(
    marks: Sequence[str] = (), *, special: bool = True, chat_template: str = ""
) -> PreTrainedTokenizerFast:
    """One token a byte; 0 is the end; ``marks`` are added tokens."""
    vocab = {END: 0} | {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()), 1)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END])
    added = [AddedToken(mark, special=special, normalized=False) for mark in marks]
    (backend.add_special_tokens if special else backend.add_tokens)(added)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, chat_template=chat_template or None)


def spelled(format_: ToolCallFormat, *calls: tuple[str, str]) -> str:
    """Return the text of calls as the format writes them."""
    spelling = format_.spelling
    written = [f"{spelling.opening}{name}{spelling.middle}{arguments}{spelling.closing}" for name, arguments in calls]
    separator = ";" if spelling.separator is None else spelling.separator
    return spelling.before + separator.join(written) + spelling.after


@dataclass(frozen=True, slots=True)
class Read:
    """What a reader made of a text."""

    content: str
    calls: list[tuple[str, str]]


def read(events: Sequence[Event]) -> Read:
    """Put events together."""
    content, calls = "", list[tuple[str, str]]()
    for event in events:
        if isinstance(event, Content):
            content += event.text
        elif isinstance(event, CallStart):
            calls.append((event.name, ""))
        elif isinstance(event, Arguments):
            name, before = calls[-1]
            calls[-1] = (name, before + event.text)
    return Read(content, calls)


def valid(name: str, arguments: str) -> bool:
    """Whether these are arguments of ``TOOLS``."""
    said = json.loads(arguments)
    if name == "now":
        return bool(said == {})
    return name == "weather" and said.keys() == {"city", "days"} and len(said["city"]) <= 6 and 0 <= said["days"] <= 9


@dataclass(frozen=True, slots=True)
class Script:
    """A language model that says ``answer``, and then the end, whatever is before the answer's beginning."""

    answer: tuple[int, ...]
    num_prompt_tokens: int

    def next_token(self, token_ids: Sequence[int]) -> int:
        place = len(token_ids) - self.num_prompt_tokens
        return self.answer[place] if place < len(self.answer) else 0

    def confidence(self, token_ids: Sequence[int]) -> float:
        return 0.5
