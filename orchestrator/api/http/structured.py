"""What an answer may be: OpenAI's ``response_format`` and vLLM's ``structured_outputs``. Each becomes a grammar."""

import json
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, model_validator

from orchestrator.api.http.strict import Name, StrictBody
from specgate.errors import InvalidArgument
from specgate.types import Grammar, GrammarKind

ANY_OBJECT = '{"type": "object"}'
MAX_CHOICES = 10_000


class JsonSchema(StrictBody):
    """A named schema. An answer follows it whether ``strict`` or not."""

    name: Name
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(StrictBody):
    """OpenAI's field: any text, any JSON object, or a JSON value that follows a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _check_pair(self) -> "ResponseFormat":
        if self.type == "json_schema" and self.json_schema is None:
            raise InvalidArgument("response_format.json_schema", "is missing")
        if self.type != "json_schema" and self.json_schema is not None:
            raise InvalidArgument("response_format.json_schema", f"does not belong to the type {self.type}")
        return self

    @property
    def grammar(self) -> Grammar | None:
        """What answers follow, None for any text."""
        return _format_grammar(self.type, self.json_schema.schema_ if self.json_schema is not None else None)


class ResponseTextFormat(StrictBody):
    """``response_format`` as ``/v1/responses`` has it: without an inner object."""

    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _check_fields(self) -> "ResponseTextFormat":
        for field, value in {"name": self.name, "schema": self.schema_}.items():
            if (value is None) == (self.type == "json_schema"):
                problem = "is missing" if value is None else f"does not belong to the type {self.type}"
                raise InvalidArgument(f"text.format.{field}", problem)
        return self

    @property
    def grammar(self) -> Grammar | None:
        """What answers follow, None for any text."""
        return _format_grammar(self.type, self.schema_)


def _format_grammar(kind: str, schema: dict[str, Any] | None) -> Grammar | None:
    if kind == "text":
        return None
    return Grammar(GrammarKind.JSON_SCHEMA, ANY_OBJECT if schema is None else json.dumps(schema))


class StructuredOutputs(StrictBody):
    """vLLM's field: one of five ways to define what an answer may be. ``grammar`` is Lark or GBNF."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: Annotated[list[str], Field(max_length=MAX_CHOICES, fail_fast=True)] | None = None
    grammar_: str | None = Field(None, alias="grammar")
    json_object: bool | None = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool | None = None

    @model_validator(mode="after")
    def _check_one(self) -> "StructuredOutputs":
        if len(self._given) != 1:
            problem = f"takes one of json, regex, choice, grammar, json_object; has {', '.join(self._given) or 'none'}"
            raise InvalidArgument("structured_outputs", problem)
        return self

    @property
    def _given(self) -> dict[str, Any]:
        given = {
            "json": self.json_,
            "regex": self.regex,
            "choice": self.choice,
            "grammar": self.grammar_,
            "json_object": self.json_object or None,
        }
        return {name: value for name, value in given.items() if value is not None}

    @property
    def grammar(self) -> Grammar:
        """What answers follow."""
        ((name, value),) = self._given.items()
        if name == "choice":
            return Grammar(GrammarKind.CHOICE, json.dumps(value))
        if name in ("regex", "grammar"):
            return Grammar(GrammarKind.REGEX if name == "regex" else GrammarKind.LARK, value)
        return Grammar(GrammarKind.JSON_SCHEMA, self._schema(ANY_OBJECT if name == "json_object" else value))

    @property
    def field(self) -> str:
        """The client's name of the grammar."""
        return "structured_outputs." + next(iter(self._given))

    def _schema(self, schema: dict[str, Any] | str) -> str:
        """Return a schema as JSON, with the request's rule for whitespace."""
        pattern = "" if self.disable_any_whitespace else self.whitespace_pattern
        if pattern is None:
            return schema if isinstance(schema, str) else json.dumps(schema)
        try:
            parsed = json.loads(schema) if isinstance(schema, str) else schema
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict) or not isinstance(parsed.get("x-guidance", {}), dict):
            raise InvalidArgument("structured_outputs.json", "must be a JSON schema that is an object")
        return json.dumps({**parsed, "x-guidance": {**parsed.get("x-guidance", {}), "whitespace_pattern": pattern}})


class FormatNames(NamedTuple):
    """An endpoint's names of its format, and of the schema in it."""

    format: str
    schema: str


def grammar_of(
    given: ResponseFormat | ResponseTextFormat | None, structured_outputs: StructuredOutputs | None, names: FormatNames
) -> Grammar | None:
    """Return what an answer must follow, None for any text.

    Raises:
        InvalidArgument: both define something, or the grammar is too long.
    """
    grammar = given.grammar if given is not None else None
    if structured_outputs is None:
        return grammar
    if grammar is not None:
        raise InvalidArgument("structured_outputs", f"excludes {names.format}; give one of them")
    return structured_outputs.grammar


def grammar_names(structured_outputs: StructuredOutputs | None, names: FormatNames) -> dict[str, str]:
    """Return the client's name of each kind of grammar, by ours."""
    if structured_outputs is None:
        return {f"grammar.{GrammarKind.JSON_SCHEMA}": names.schema, "grammar": names.format}
    return {f"grammar.{kind}": structured_outputs.field for kind in GrammarKind} | {"grammar": "structured_outputs"}
