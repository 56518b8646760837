"""``POST /tokenize``, ``POST /detokenize`` and ``GET /tokenizer_info``, in vLLM's shapes."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field, model_validator

from orchestrator.api.http.admission import check_model, encode_chat
from orchestrator.api.http.body import read_model
from orchestrator.api.http.chat import Messages
from orchestrator.api.http.rendering import to_json_in_pieces
from orchestrator.api.http.requests import MAX_PROMPT_TOKENS
from orchestrator.api.http.strict import Name, OnlyFalse, StrictBody
from orchestrator.api.http.tool_request import Tools, check_tools
from orchestrator.api.keys.account import charge_request
from orchestrator.api.request_queue import RequestQueue
from orchestrator.decode.text import TextTokenizer
from specgate.errors import InvalidArgument
from specgate.rpc.validate import check_token_ids


class TokenizeRequest(StrictBody):
    """A text or the messages of a chat, encoded as the endpoints for completions and chats encode them."""

    model: Name | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: Tools | None = None
    return_token_strs: bool | None = None

    chat_template: None = None
    chat_template_kwargs: None = None

    @model_validator(mode="after")
    def _check_pairs(self) -> "TokenizeRequest":
        if (self.prompt is None) == (self.messages is None):
            raise InvalidArgument("prompt", "give either prompt or messages")
        if self.messages is not None and self.add_special_tokens:
            raise InvalidArgument("add_special_tokens", "belongs to a prompt; the chat template adds its own")
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidArgument("continue_final_message", "excludes add_generation_prompt")
        if self.messages is None and self.tools:
            raise InvalidArgument("tools", "belong to messages")
        check_tools(self.tools or (), None)
        return self


class DetokenizeRequest(StrictBody):
    """Token ids to decode."""

    model: Name | None = None
    tokens: Annotated[list[int], Field(max_length=MAX_PROMPT_TOKENS, fail_fast=True)]

    skip_special_tokens: OnlyFalse | None = None


def add_tokenization(app: FastAPI, request_queue: RequestQueue) -> None:
    """Add the three routes."""

    @app.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        params = await read_model(request, TokenizeRequest)
        check_model(params.model, request_queue)
        encode = partial(_tokenized, params, request_queue.target_info.context_length)
        field = "prompt" if params.messages is None else "messages"
        charge_request()
        return _json(await request_queue.read(encode, params.num_bytes, field))

    @app.post("/detokenize")
    async def detokenize(request: Request) -> Response:
        params = await read_model(request, DetokenizeRequest)
        check_model(params.model, request_queue)
        charge_request()
        return _json(await request_queue.read(partial(_detokenized, params.tokens), params.num_bytes, "tokens"))

    @app.get("/tokenizer_info")
    async def tokenizer_info() -> Response:
        return JSONResponse(request_queue.tokenizer.info())


def _json(text: str) -> Response:
    return Response(text, media_type="application/json")


def _detokenized(token_ids: Sequence[int], tokenizer: TextTokenizer) -> str:
    check_token_ids("tokens", token_ids, tokenizer.vocab_size)
    return to_json_in_pieces({"prompt": tokenizer.decode(token_ids, skip_special_tokens=False)})


def _tokenized(params: TokenizeRequest, context_length: int, tokenizer: TextTokenizer) -> str:
    if params.messages is not None:
        tokens = encode_chat(params, params.tools or (), tokenizer)
    else:
        tokens = tokenizer.encode(params.prompt or "", add_special_tokens=params.add_special_tokens is not False)
    return to_json_in_pieces(
        {
            "count": len(tokens),
            "max_model_len": context_length,
            "tokens": tokens,
            "token_strs": tokenizer.token_strings(tokens) if params.return_token_strs else None,
        }
    )
