"""Bodies for the HTTP door: nearly valid ones with fields out of their range, and no JSON at all."""

import json
from typing import Any, NamedTuple

from hypothesis import strategies as st

from orchestrator.api.http.chat import ChatRequest
from orchestrator.api.http.requests import CompletionRequest
from orchestrator.api.http.responses_request import ResponsesRequest
from orchestrator.api.http.tokenization import DetokenizeRequest, TokenizeRequest
from tests.orchestrator.api.http_serving import CHAT, COMPLETIONS, MESSAGES, PROMPT, RESPONSES

VALID: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"model": "fake", "prompt": PROMPT, "max_tokens": 3},
    CHAT: {"model": "fake", "messages": MESSAGES, "max_tokens": 3},
    RESPONSES: {"model": "fake", "input": "Hi", "max_output_tokens": 3},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": PROMPT},
}
FIELDS = {
    COMPLETIONS: (*CompletionRequest.model_fields, "unknown", ""),
    CHAT: (*ChatRequest.model_fields, "unknown", ""),
    RESPONSES: (*ResponsesRequest.model_fields, "unknown", ""),
    "/tokenize": (*TokenizeRequest.model_fields, "unknown", ""),
    "/detokenize": (*DetokenizeRequest.model_fields, "unknown", ""),
}
INTEGERS = st.sampled_from(
    (-(2**63), -1, 0, 1, 2, 16, 20, 21, 64, 65, 511, 512, 1023, 1024, 2**31, 2**32, 2**63, 2**64, 10**30)
)
FLOATS = st.sampled_from(
    (-2.01, -0.0, 0.0, 1e-300, 0.5, 1.0, 1.0001, 2.0, 100.0, 101.0, 1e308, float("nan"), float("inf"))
)
TEXTS = st.sampled_from(
    ("", "a", "def f():", "\x00", "\ud800", "é", "🙂", "<|end|>", "<|turn|>", "{{ 7 * 7 }}", "x" * 5000)
)
WORDS = st.sampled_from(
    ("auto", "none", "target_confidence", "draft_confidence", "shared_noise", "rejection", "system", "json_schema")
)
SCALARS = st.none() | st.booleans() | INTEGERS | FLOATS | TEXTS | WORDS
MESSAGE = st.dictionaries(st.sampled_from(("role", "content", "name", "tool_calls", "x")), SCALARS, max_size=4)
SCHEMA = st.dictionaries(
    st.sampled_from(("type", "properties", "items", "enum", "not", "$ref", "x-guidance")),
    SCALARS | st.sampled_from(("object", "string", "array", "objekt", "#", {"a": {"type": "object"}}, ["a", 1])),
    max_size=3,
)
FORM = st.dictionaries(
    st.sampled_from(("json", "regex", "choice", "grammar", "json_object", "whitespace_pattern", "x")),
    SCALARS | SCHEMA | st.lists(TEXTS, max_size=3) | st.sampled_from(("a+", "(a", 'start: "a"', 'root ::= "a"')),
    max_size=2,
)
NAMED = st.fixed_dictionaries({"name": TEXTS, "schema": SCHEMA})
FORMAT = st.one_of(
    st.fixed_dictionaries({"type": st.just("json_object")}),
    st.fixed_dictionaries({"type": st.just("json_schema"), "json_schema": NAMED}),
    st.fixed_dictionaries({"type": st.just("json_schema"), "name": TEXTS, "schema": SCHEMA}),
)
FORMS = {"response_format": FORMAT, "structured_outputs": FORM, "text": st.fixed_dictionaries({"format": FORMAT})}
"""By field: what is nearly a form of an answer."""
VALUES = st.recursive(
    SCALARS | MESSAGE,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(("", "0", "5", "-1", "1e3", "99999999999", "type", "text")), inner, max_size=3
        )
    ),
    max_leaves=6,
)
HEADERS = st.sampled_from(
    (
        {"Content-Type": "application/json"},
        {"Content-Type": "application/json; charset=utf-16"},
        {"Content-Type": "APPLICATION/JSON", "Content-Encoding": "gzip"},
        {"Content-Type": "text/plain"},
        {},
    )
)
JSON_HEADERS = {"Content-Type": "application/json"}


class HttpCase(NamedTuple):
    """One request."""

    path: str
    body: bytes
    headers: dict[str, str] = JSON_HEADERS
    method: str = "POST"


LONG = {
    "prompt": st.sampled_from(([5] * 1000, [[5] * 300] * 5, "x = 1\n" * 200)),
    "messages": st.sampled_from((MESSAGES * 40, MESSAGES * 4000)),
    "input": st.sampled_from((MESSAGES * 40, "x = 1\n" * 200)),
    "tokens": st.sampled_from(([5] * 1000, [5] * 80_000)),
    "n": st.sampled_from((1, 2, 16)),
    "echo": st.booleans(),
    "logprobs": st.sampled_from((0, 1, 20, True)),
    "top_logprobs": st.sampled_from((0, 20)),
    "prompt_logprobs": st.sampled_from((0, 1, 20)),
    "max_tokens": st.sampled_from((0, 1, 64)),
    "return_rounds": st.booleans(),
}
"""By field: what may take long to read or to answer, at the full context of the bundled pair."""
ONE_IN = 40
"""Bodies of which one is long: it takes as many times longer."""


@st.composite
def long_bodies(draw: Any) -> HttpCase:
    """A body that is valid, or nearly, and takes long."""
    path = draw(st.sampled_from(tuple(VALID)))
    fields = {name: LONG[name] for name in LONG if name in FIELDS[path]}
    body = VALID[path] | draw(st.fixed_dictionaries({}, optional=fields))
    if "stream" in FIELDS[path]:
        body["stream"] = draw(st.booleans())
    return HttpCase(path, json.dumps(body).encode())


@st.composite
def mutated_bodies(draw: Any) -> HttpCase:
    """A valid body with a few fields changed, added or left out, and maybe with a form of the answer."""
    if draw(st.integers(1, ONE_IN)) == ONE_IN:
        return draw(long_bodies())
    path = draw(st.sampled_from((COMPLETIONS, CHAT, *VALID)))
    body = VALID[path] | draw(st.dictionaries(st.sampled_from(FIELDS[path]), VALUES, max_size=4))
    forms = [st.fixed_dictionaries({name: FORMS[name]}) for name in FORMS if name in FIELDS[path]]
    body |= draw(st.one_of(st.just({}), *forms))
    for name in draw(st.lists(st.sampled_from(tuple(VALID[path])), max_size=1)):
        body.pop(name)
    if "stream" in FIELDS[path] and draw(st.booleans()):
        body["stream"] = True
    return HttpCase(path, json.dumps(body).encode())


@st.composite
def raw_bodies(draw: Any) -> HttpCase:
    """Bytes, or a valid body that is cut, doubled, or wrapped in brackets, under any header, path and method."""
    path = draw(st.sampled_from((COMPLETIONS, CHAT, "/v1/models", "/v1/models/a/b", "/readyz", "/nothing")))
    valid = json.dumps(VALID.get(path, {})).encode()
    body = draw(
        st.binary(max_size=200)
        | st.integers(0, len(valid)).map(lambda end: valid[:end])
        | st.integers(1, 2000).map(lambda depth: b"[" * depth)
        | st.just(valid * 2)
        | st.just(valid.decode().encode("utf-16"))
        | st.just(b'{"model": "fake", "model": "fake", "prompt": [1], "max_tokens": 1e0}')
    )
    return HttpCase(path, body, draw(HEADERS), draw(st.sampled_from(("POST", "GET", "PUT", "DELETE", "HEAD", "BREW"))))


CASES = mutated_bodies() | mutated_bodies() | raw_bodies()
