"""Domain <-> protobuf for the grammar of an answer."""

import json

from specgate.errors import InvalidArgument
from specgate.types import Grammar, GrammarKind
from specgate.v1 import types_pb2 as pb2


def grammar_to_pb(grammar: Grammar | None) -> pb2.Grammar | None:
    """Return the wire's message, None for none."""
    if grammar is None:
        return None
    if grammar.kind is GrammarKind.CHOICE:
        return pb2.Grammar(choice=pb2.Choice(texts=json.loads(grammar.text)))
    pb = pb2.Grammar()
    setattr(pb, str(grammar.kind), grammar.text)
    return pb


def grammar_from_pb(pb: pb2.Grammar) -> Grammar:
    """Return the domain's value.

    Raises:
        InvalidArgument: it has no kind, or its text is empty or too long.
    """
    kind = pb.WhichOneof("kind")
    if kind is None:
        raise InvalidArgument("grammar.kind", "is missing; give one of json_schema, regex, choice, lark")
    if kind == "choice":
        return Grammar(GrammarKind.CHOICE, json.dumps(list(pb.choice.texts)))
    return Grammar(GrammarKind(kind), getattr(pb, kind))
