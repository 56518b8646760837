"""``GET /openapi.json``: what the HTTP API takes, made from the models that validate it."""

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import specgate
from orchestrator.api.http.chat import ChatRequest
from orchestrator.api.http.requests import CompletionRequest
from orchestrator.api.http.responses_request import ResponsesRequest
from orchestrator.api.http.tokenization import DetokenizeRequest, TokenizeRequest

POSTS: dict[str, tuple[str, type[BaseModel]]] = {
    "/v1/completions": ("Go on with texts", CompletionRequest),
    "/v1/chat/completions": ("Answer in a chat", ChatRequest),
    "/v1/responses": ("Answer once, as a response", ResponsesRequest),
    "/tokenize": ("Encode a text or a chat", TokenizeRequest),
    "/detokenize": ("Read token ids", DetokenizeRequest),
}
STREAMS = ("/v1/completions", "/v1/chat/completions", "/v1/responses")
GETS = {
    "/v1/stream": "Become a WebSocket, for requests that stream",
    "/v1/models": "The one model that is served",
    "/v1/models/{name}": "The same, by its name, which may hold slashes",
    "/tokenizer_info": "What a client needs to imitate the tokenizer",
    "/health": "The process answers",
    "/healthz": "The process answers",
    "/readyz": "A verifier is there",
    "/metrics": "What the gateway counts, for Prometheus",
    "/metrics/targets": "Where the /metrics of all replicas are, for Prometheus",
    "/version": "The version of specgate",
    "/openapi.json": "This document",
}
REFUSALS = ("400", "401", "403", "404", "408", "413", "415", "426", "429", "431", "500", "503")
JSON = "application/json"
EVENTS = "text/event-stream"
ANSWERS = {"/metrics": "text/plain", "/metrics/targets": JSON}
"""Media types of answers that are not a JSON object."""
OBJECT = {"schema": {"type": "object"}}
REF = "#/components/schemas/{model}"


class Error(BaseModel):
    """What went wrong. ``param`` is the field at fault, if any. Logs have the same ``request_id``."""

    message: str
    type: str
    param: str | None
    code: str | None
    request_id: str | None = None


class ErrorBody(BaseModel):
    """The answer to every request that fails."""

    error: Error


def document() -> dict[str, Any]:
    """Return the document."""
    models: list[type[BaseModel]] = [*(model for _, model in POSTS.values()), ErrorBody]
    _, definitions = models_json_schema([(model, "validation") for model in models], ref_template=REF)
    return {
        "openapi": "3.1.0",
        "info": {"title": "specgate", "version": specgate.__version__},
        "paths": {
            **{path: {"post": _post(path, summary, model)} for path, (summary, model) in POSTS.items()},
            **{path: {"get": _get(path, summary)} for path, summary in GETS.items()},
        },
        "components": {"schemas": definitions["$defs"]},
    }


def _post(path: str, summary: str, model: type[BaseModel]) -> dict[str, Any]:
    body = {"required": True, "content": {"application/json": {"schema": _ref(model)}}}
    answers: dict[str, Any] = {JSON: OBJECT} | ({EVENTS: {}} if path in STREAMS else {})
    return {"summary": summary, "requestBody": body, "responses": _responses(answers)}


def _get(path: str, summary: str) -> dict[str, Any]:
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    parameters = {"parameters": [name]} if "{name}" in path else {}
    return {
        "summary": summary,
        **parameters,
        "responses": _responses({ANSWERS[path]: {}} if path in ANSWERS else {JSON: OBJECT}),
    }


def _responses(answers: dict[str, Any]) -> dict[str, Any]:
    """Return the possible responses: an answer of one of these types, or a refusal."""
    refusal = {"description": "Refused, or failed", "content": {"application/json": {"schema": _ref(ErrorBody)}}}
    return {"200": {"description": "Done", "content": answers}} | dict.fromkeys(REFUSALS, refusal)


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": REF.format(model=model.__name__)}
