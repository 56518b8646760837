"""Requests that Schemathesis makes of ``/openapi.json`` alone: as it allows, as it does not, and at its boundaries."""

from collections.abc import Iterator
from typing import Any

import schemathesis
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi import checks

from orchestrator.api.http.openapi import document
from tests.support.fuzz_http import VALID

load_all_checks()
SHORT = ("model", "max_tokens", "max_output_tokens")
"""Of a valid body: what makes it one that is answered, and soon."""
CHECKS = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.unsupported_method,
]


def operations() -> list[Any]:
    """Return all that the document tells of."""
    return [found.ok() for found in schemathesis.openapi.from_dict(document()).get_all_operations()]


def cases() -> st.SearchStrategy[Case]:
    """Return requests of all operations; those with a body come more often, some of them all but valid."""
    kinds: list[st.SearchStrategy[Case]] = [_any_get([one for one in operations() if one.method == "get"])]
    for operation in (one for one in operations() if one.path in VALID):
        kinds += [_nearly_valid(operation), _short(operation), operation.as_strategy(GenerationMode.NEGATIVE)]
    return st.one_of(kinds)


def boundaries(operation: Any) -> Iterator[Case]:
    """Yield what the document says of an operation, word for word: each keyword kept, and each one broken."""
    schema = operation.schema
    yield from schema.iter_coverage_cases(
        operation,
        generation_modes=list(GenerationMode),
        generation_config=schema.config.generation_for(operation=operation),
    )


def _any_get(gets: list[Any]) -> st.SearchStrategy[Case]:
    return st.one_of([operation.as_strategy() for operation in gets])


@st.composite
def _short(draw: Any, operation: Any) -> Case:
    """A body that the document allows, of the model that is served."""
    case: Case = draw(operation.as_strategy())
    valid = VALID[operation.path]
    short = {name: valid[name] for name in SHORT if name in valid}
    case.body = short | case.body | {name: value for name, value in short.items() if name == "model"}
    return case


@st.composite
def _nearly_valid(draw: Any, operation: Any) -> Case:
    """A body that is answered, with a few fields as the document allows them."""
    case: Case = draw(operation.as_strategy())
    valid = VALID[operation.path]
    others = sorted(set(case.body) - set(valid))
    few = draw(st.lists(st.sampled_from(others), max_size=3, unique=True)) if others else []
    case.body = valid | {name: case.body[name] for name in few}
    return case
