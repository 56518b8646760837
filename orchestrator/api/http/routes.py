"""The HTTP API: OpenAI's endpoints for completions, chats and models, and what a load balancer asks."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

import specgate
from orchestrator.api.http.admission import admissible, check_model, echoed_texts
from orchestrator.api.http.answers import ChatAnswer, CompletionAnswer, OpenAIAnswer
from orchestrator.api.http.body import read_model
from orchestrator.api.http.chat import ChatRequest
from orchestrator.api.http.errors import ApiError, error_response
from orchestrator.api.http.logprobs import TokenTexts
from orchestrator.api.http.middleware import (
    HostMiddleware,
    KeyMiddleware,
    RequestIdMiddleware,
    TracingMiddleware,
    with_few_headers,
)
from orchestrator.api.http.openapi import document
from orchestrator.api.http.operations import Probe, Readiness, Targets, add_health, add_metrics, no_targets
from orchestrator.api.http.page import add_page
from orchestrator.api.http.requests import CompletionRequest
from orchestrator.api.http.response import GenerationResponse
from orchestrator.api.http.responses_answer import ResponsesAnswer
from orchestrator.api.http.responses_request import ResponsesRequest
from orchestrator.api.http.tokenization import add_tokenization
from orchestrator.api.http.tool_choice import ToolCallingChoice
from orchestrator.api.http.tool_use import ToolUse
from orchestrator.api.http.upgrade import add_stream
from orchestrator.api.keys.keyring import Keyring
from orchestrator.api.request_queue import RequestQueue
from specgate.errors import SpecgateError


def make_app(
    request_queue: RequestQueue,
    probe: Probe | None = None,
    targets: Targets = no_targets,
    keyring: Keyring | None = None,
    *,
    hosts: Sequence[str] = (),
    has_metrics: bool = True,
    has_page: bool = True,
) -> FastAPI:
    """Return the application over ``request_queue``. It describes itself at ``/openapi.json``.

    Args:
        probe: see ``Readiness``.
        targets: see ``add_metrics``.
        keyring: whose keys requests need; None asks for none.
        hosts: see ``HostMiddleware``, which is there where no keys are.
        has_metrics: whether ``/metrics`` is here, and not at a port of its own.
        has_page: whether ``/`` shows the page.
    """
    app = _bare_app()
    _add_generation(app, request_queue)
    _add_responses(app, request_queue)
    add_stream(app, hosts, request_queue.model_name)
    _add_models(app, request_queue)
    add_tokenization(app, request_queue)
    add_health(app, Readiness(request_queue, probe))
    if has_metrics:
        add_metrics(app, request_queue.metrics, targets)
    _add_document(app)
    if has_page:
        add_page(app)
    return _wrapped(app, hosts, keyring)


def make_operations_app(
    request_queue: RequestQueue, probe: Probe | None, targets: Targets, hosts: Sequence[str]
) -> FastAPI:
    """Return what is asked at a port of its own: health, readiness, metrics."""
    app = _bare_app()
    add_health(app, Readiness(request_queue, probe))
    add_metrics(app, request_queue.metrics, targets)
    return _wrapped(app, hosts)


def _bare_app() -> FastAPI:
    app = FastAPI(title="specgate", version=specgate.__version__, openapi_url=None, docs_url=None, redoc_url=None)
    _add_error_handlers(app)
    return app


def _wrapped(app: FastAPI, hosts: Sequence[str], keyring: Keyring | None = None) -> FastAPI:
    inner = app.build_middleware_stack()
    traced = TracingMiddleware(inner)
    checked = HostMiddleware(traced, hosts) if keyring is None else KeyMiddleware(traced, keyring)
    # Outermost, so that every answer has the id, also the answer to an unexpected error.
    app.middleware_stack = RequestIdMiddleware(with_few_headers(checked))
    return app


def _add_error_handlers(app: FastAPI) -> None:
    async def refuse(_: Request, error: Exception) -> Response:
        return error_response(error)

    async def nobody_is_there(_: Request, error: Exception) -> Response:
        return Response(status_code=400)

    for kind in (SpecgateError, HTTPException, Exception):
        app.add_exception_handler(kind, refuse)
    app.add_exception_handler(ClientDisconnect, nobody_is_there)


def _add_generation(app: FastAPI, request_queue: RequestQueue) -> None:
    async def generate(
        params: CompletionRequest | ChatRequest, kind: Callable[..., OpenAIAnswer], tool_use: ToolUse | None = None
    ) -> Response:
        requests = await admissible(params, request_queue, tool_use)
        prompts = [request.prompt_token_ids for request in requests[:: params.num_copies]]
        texts = await echoed_texts(params, prompts, request_queue)
        tokenizer = request_queue.orchestrator.tokenizer
        text_of = TokenTexts(tokenizer, skip_special_tokens=params.skips_special_tokens)
        answer = kind(params, list(zip(prompts, texts, strict=True)), text_of)
        return GenerationResponse(request_queue, params, requests, answer)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        request_queue.check_room()
        return await generate(await read_model(request, CompletionRequest), CompletionAnswer)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        request_queue.check_room()
        params = await read_model(request, ChatRequest)
        if not params.offered_tools:
            return await generate(params, ChatAnswer)
        check_model(params.model, request_queue)
        tool_use = ToolUse(params, request_queue)
        return await generate(params, partial(ChatAnswer, choice=partial(ToolCallingChoice, tool_use)), tool_use)


def _add_responses(app: FastAPI, request_queue: RequestQueue) -> None:
    @app.post("/v1/responses")
    async def responses(request: Request) -> Response:
        request_queue.check_room()
        params = await read_model(request, ResponsesRequest)
        requests = await admissible(params, request_queue)
        answer = ResponsesAnswer(params, requests[0].prompt_token_ids)
        return GenerationResponse(request_queue, params, requests, answer)


def _add_models(app: FastAPI, request_queue: RequestQueue) -> None:
    model: dict[str, Any] = {
        "id": request_queue.model_name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "specgate",
        "max_model_len": request_queue.target_info.context_length,
    }

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [model]})

    # A model's name may hold slashes.
    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> Response:
        if name != request_queue.model_name:
            raise ApiError(404, f"the model {name!r} is not served here", param="model", code="model_not_found")
        return JSONResponse(model)


def _add_document(app: FastAPI) -> None:
    described = document()

    @app.get("/openapi.json")
    async def openapi() -> Response:
        return JSONResponse(described)
