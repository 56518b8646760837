"""The HTTP door: OpenAI's endpoints for completions, chats and models, and what a load balancer asks."""

import time
from collections.abc import Callable
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
from orchestrator.api.http.headers import with_few_headers
from orchestrator.api.http.logprobs import token_text
from orchestrator.api.http.openapi import document
from orchestrator.api.http.request_id import RequestIdMiddleware
from orchestrator.api.http.requests import CompletionRequest
from orchestrator.api.http.response import GenerationResponse
from orchestrator.api.http.responses_answer import ResponsesAnswer
from orchestrator.api.http.responses_request import ResponsesRequest
from orchestrator.api.http.tokenization import add_tokenization
from orchestrator.api.http.tools.choice import ToolAnswer
from orchestrator.api.http.tools.use import ToolUse
from orchestrator.api.readiness import Probe, Readiness
from orchestrator.api.request_queue import RequestQueue
from specgate.errors import SpecgateError


def make_app(request_queue: RequestQueue, probe: Probe | None = None) -> FastAPI:
    """Return the application over ``request_queue``. It has no pages, and describes itself at ``/openapi.json``.

    Args:
        probe: see ``Readiness``.
    """
    app = FastAPI(title="specgate", version=specgate.__version__, openapi_url=None, docs_url=None, redoc_url=None)
    _add_error_handlers(app)
    _add_generation(app, request_queue)
    _add_responses(app, request_queue)
    _add_models(app, request_queue)
    add_tokenization(app, request_queue)
    _add_health(app, Readiness(request_queue, probe))
    # Around all else, so that every answer has the id: also one to an error that nobody expected.
    app.middleware_stack = RequestIdMiddleware(with_few_headers(app.build_middleware_stack()))
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
        tokenizer = request_queue.orchestrator.tokenizer
        prompts = [request.prompt_token_ids for request in requests[:: params.num_copies]]
        texts = echoed_texts(params, prompts, tokenizer)
        answer = kind(params, list(zip(prompts, texts, strict=True)), token_text(tokenizer))
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
        return await generate(params, partial(ToolAnswer, tool_use), tool_use)


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


def _add_health(app: FastAPI, readiness: Readiness) -> None:
    @app.get("/health")
    @app.get("/healthz")
    async def healthz() -> Response:
        return JSONResponse({"status": "alive"})

    @app.get("/readyz")
    async def readyz() -> Response:
        await readiness.check()
        return JSONResponse({"status": "ready"})

    described = document()

    @app.get("/openapi.json")
    async def openapi() -> Response:
        return JSONResponse(described)

    @app.get("/version")
    async def version() -> Response:
        return JSONResponse({"version": specgate.__version__})
