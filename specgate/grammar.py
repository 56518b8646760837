"""Grammars of answers, as the library that masks tokens takes them: llguidance. It is imported where one is used."""

import json
import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from specgate.errors import InvalidArgument
from specgate.types import Grammar, GrammarKind

if TYPE_CHECKING:
    from llguidance import LLParserLimits

WHITESPACE = r"[\x20\x0A\x0D\x09]{1,20}"
"""Between two tokens of JSON, at the most: a model that is fond of blanks gets on. A schema may say otherwise by
``x-guidance``, see llguidance."""
MAX_GBNF_CHARACTERS = 8192
"""It is read in Python, in a time that grows with the square of its length."""
MAX_PLACE_CHARACTERS, MAX_PROBLEM_CHARACTERS = 256, 200
"""Of what is said about a grammar. Names of properties are the client's."""
MIN_INTEGER, MAX_INTEGER = -(1 << 63), (1 << 63) - 1
MAX_PLACES = 256
"""Parts of a schema that are looked at for what is wrong with it."""
_GBNF_RULE = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)
_PARTS = ("$defs", "definitions", "properties", "patternProperties", "items", "prefixItems", "additionalProperties")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_VALUES = ("const", "enum", "multipleOf")
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")


def limits() -> "LLParserLimits":
    """Return what one grammar may cost: a row of bits some milliseconds, a session some ten megabytes."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=400,
        step_max_items=10_000,
        step_lexer_fuel=50_000,
        max_lexer_states=10_000,
        max_grammar_size=100_000,
        # A client may see what is wrong, not the parser's state.
        verbose_errors=False,
    )


def compiled(grammar: Grammar) -> str:
    """Return the grammar in llguidance's own form. That does not say that it can be used: see ``usable``.

    Raises:
        InvalidArgument: it is no JSON where it has to be.
    """
    from llguidance import LLMatcher

    try:
        if grammar.kind is GrammarKind.JSON_SCHEMA:
            return LLMatcher.grammar_from_json_schema(grammar.text, defaults={"whitespace_pattern": WHITESPACE})
        if grammar.kind is GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(grammar.text)
        return LLMatcher.grammar_from_lark(_lark(grammar))
    except ValueError as error:
        raise InvalidArgument(_field(grammar), problem_of(str(error))) from None


def problem_of(message: str) -> str:
    """Return a message of the library's in one line."""
    return " ".join(message.removesuffix("<non-verbose/>").split())[:MAX_PROBLEM_CHARACTERS] or "cannot be used"


def usable(grammar: Grammar) -> Grammar:
    """Return a grammar as services take it: held against the library, without a tokenizer, and one in GBNF in Lark.

    Raises:
        InvalidArgument: it cannot be used; the field is the place in the grammar, as far as that is known.
    """
    if grammar.kind is GrammarKind.LARK:
        grammar = _from_gbnf(grammar)
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        _check_numbers(grammar)
    if error := _error_of(compiled(grammar)):
        place = ".".join([_field(grammar), *_place_of(grammar, error)])
        raise InvalidArgument(place[:MAX_PLACE_CHARACTERS], problem_of(error))
    return grammar


def _check_numbers(grammar: Grammar) -> None:
    """Raise InvalidArgument for a number that the library rounds: the answer would follow another schema."""
    try:
        schema = json.loads(grammar.text)
    # Of a number that is too long for Python: the library says what is wrong.
    except ValueError:
        return
    parts: list[tuple[list[str], Any]] = [([], schema)]
    referred: set[str] = set()
    while parts:
        path, part = parts.pop()
        if not isinstance(part, dict):
            continue
        reference = part.get("$ref")
        if isinstance(reference, str) and reference not in referred:
            referred.add(reference)
            parts.append(_referred(schema, reference))
        kind = part.get("type")
        is_integer = isinstance(kind, str | list) and "integer" in kind
        wrong = [(name, part[name]) for name in _BOUNDS if name in part and _is_rounded(part[name], is_integer)]
        wrong += [(name, one) for name in _VALUES for one in _numbers_in(part.get(name)) if _is_rounded(one, False)]
        if wrong:
            name, number = wrong[0]
            place = ".".join([_field(grammar), *path, name])
            raise InvalidArgument(place[:MAX_PLACE_CHARACTERS], f"{str(number)[:40]} cannot be kept exactly")
        parts += (([*path, *step], inner) for step, inner in _parts(part))


def _referred(schema: Any, reference: str) -> tuple[list[str], Any]:
    """Return the way to what a reference within the schema names, wherever that is, and the part; None: nothing."""
    path = [unquote(step).replace("~1", "/").replace("~0", "~") for step in reference.split("/")[1:]]
    part = schema
    for step in path:
        if isinstance(part, list) and step.isdecimal() and int(step) < len(part):
            part = part[int(step)]
        else:
            part = part.get(step) if isinstance(part, dict) else None
    return path, part


def _numbers_in(value: Any) -> Iterator[Any]:
    """Yield the numbers of a JSON value, however deep they are."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _numbers_in(inner)
    else:
        yield value


def _is_rounded(number: Any, is_integer: bool) -> bool:
    """Return whether what is kept of a number means another one.

    Args:
        is_integer: whether it bounds integers: those are kept in 64 bits, at the most.
    """
    if isinstance(number, bool) or not isinstance(number, int | float):
        return False
    try:
        kept = math.trunc(float(number))
    # Of what is no finite number, or none that a double reaches.
    except (OverflowError, ValueError):
        return True
    return (max(MIN_INTEGER, min(kept, MAX_INTEGER)) if is_integer else kept) != math.trunc(number)


def _from_gbnf(grammar: Grammar) -> Grammar:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    if _GBNF_RULE.search(grammar.text) is None:
        return grammar
    if len(grammar.text) > MAX_GBNF_CHARACTERS:
        problem = f"has {len(grammar.text)} characters; {MAX_GBNF_CHARACTERS} are the most in GBNF"
        raise InvalidArgument(_field(grammar), problem)
    try:
        return Grammar(GrammarKind.LARK, gbnf_to_lark(grammar.text))
    # The library's parser raises many kinds of errors for a broken text.
    except Exception as error:
        raise InvalidArgument(_field(grammar), f"is neither Lark nor GBNF: {problem_of(str(error))}") from None


def _lark(grammar: Grammar) -> str:
    if grammar.kind is GrammarKind.LARK:
        return grammar.text
    texts = json.loads(grammar.text)
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise ValueError("needs at least one text, and none that is empty")
    # One terminal: thousands of texts cost the lexer little, and the parser much.
    return "start: CHOICE\nCHOICE: " + " | ".join(map(json.dumps, texts))


def _field(grammar: Grammar) -> str:
    return f"grammar.{grammar.kind}"


def _error_of(compiled_text: str) -> str:
    from llguidance import LLMatcher

    is_error, messages = LLMatcher.validate_grammar_with_warnings(compiled_text, limits=limits())
    return messages[0] if is_error else ""


def _place_of(grammar: Grammar, error: str) -> list[str]:
    """Return the path to the smallest part of a JSON schema that has the same error by itself."""
    if grammar.kind is not GrammarKind.JSON_SCHEMA:
        return []
    try:
        schema = json.loads(grammar.text)
    # Of a number that is too long for Python.
    except ValueError:
        return []
    shared = {name: schema[name] for name in ("$defs", "definitions", "x-guidance") if name in schema}
    path: list[str] = []
    parts = _parts(schema)
    for _ in range(MAX_PLACES):
        step, part = next(parts, ((), None))
        if part is None:
            break
        if _schema_error({**shared, **part}) == error:
            path += step
            parts = _parts(part)
    return path


def _schema_error(schema: dict[str, Any]) -> str:
    from llguidance import LLMatcher

    try:
        return _error_of(LLMatcher.grammar_from_json_schema(schema))
    except ValueError as error:
        return str(error)


def _parts(schema: dict[str, Any]) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Yield the schemas in a schema, each with the way to it."""
    for name in (*_PARTS, *_ALTERNATIVES):
        inner = schema.get(name)
        if isinstance(inner, list):
            yield from (([name, str(i)], part) for i, part in enumerate(inner) if isinstance(part, dict))
        elif isinstance(inner, dict) and name in ("items", "additionalProperties"):
            yield [name], inner
        elif isinstance(inner, dict):
            yield from (([name, key], part) for key, part in inner.items() if isinstance(part, dict))
