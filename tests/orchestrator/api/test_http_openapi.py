"""The document says what the door takes. Bodies that tests send are held against it where they are sent."""

import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError
from starlette.routing import Route

from orchestrator.api.http.openapi import document
from orchestrator.api.http.routes import make_app
from tests.orchestrator.api.http_serving import CHAT, COMPLETIONS, MESSAGES, Site, check_described


async def test_every_path_is_described(site: Site) -> None:
    described = (await site.client.get("/openapi.json")).json()
    assert described == document()
    app = make_app(site.room.request_queue, has_page=False)
    routes = [route for route in app.routes if isinstance(route, Route)]
    served = {(route.path.replace(":path", ""), method) for route in routes for method in route.methods or ()}
    told = {(path, method.upper()) for path, methods in described["paths"].items() for method in methods}
    assert told == {(path, method) for path, method in served if method != "HEAD"}


def test_names_are_readable_and_all_references_lead_somewhere() -> None:
    described = document()
    schemas = described["components"]["schemas"]
    assert {"CompletionRequest", "ChatRequest", "ResponsesRequest", "Message", "ErrorBody"} <= schemas.keys()
    assert all(re.fullmatch(r"[A-Z][A-Za-z]+", name) for name in schemas)
    assert set(re.findall(r"#/components/schemas/(\w+)", str(described))) <= schemas.keys()
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": "a", "guided_json": {}}),
        (COMPLETIONS, {"prompt": "a", "best_of": 2}),
        (COMPLETIONS, {"prompt": {"text": "a"}}),
        (COMPLETIONS, {"prompt": "a", "stop": ["a"] * 17}),
        (COMPLETIONS, {}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
        (CHAT, {"messages": MESSAGES, "gate": "maybe"}),
    ],
    ids=str,
)
async def test_what_is_not_as_described_is_refused(site: Site, path: str, body: dict[str, Any]) -> None:
    body = {"model": "fake"} | body
    with pytest.raises(ValidationError):
        check_described(path, body)
    response = await site.client.post(path, json=body)
    assert response.status_code == 400
    Draft202012Validator(
        document()["components"]["schemas"]["ErrorBody"] | {"components": document()["components"]}
    ).validate(response.json())
