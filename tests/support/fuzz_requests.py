"""Requests in the words of neither door, what each door is told of one, and what both say to it."""

import json
from typing import Any, NamedTuple

import grpc
from hypothesis import strategies as st

from orchestrator.api.http.errors import with_client_field
from specgate.errors import InvalidArgument
from specgate.rpc.status import from_rpc_error
from specgate.v1 import generation_service_pb2 as gpb
from specgate.v1 import types_pb2
from tests.support.door_process import CONTEXT_LENGTH, MODEL, VOCAB_SIZE

Request = dict[str, Any]
"""By field, what is asked for. What a field's name is in neither door is ``prompt``, ``grammar`` and ``stream``."""

BASE: Request = {"prompt": "def f():", "seed": 7, "max_tokens": 3}
IDS = st.sampled_from((0, 5, VOCAB_SIZE - 1, VOCAB_SIZE, 2**31, 2**32 - 1))
TEXTS = st.sampled_from(("", "a", "\x00", "é🙂", "def f():\n", "<|endoftext|>"))
GRAMMARS: tuple[tuple[str, Any], ...] = (
    ("json_schema", '{"type": "boolean"}'),
    ("json_schema", '{"type": "objekt"}'),
    ("json_schema", '{"properties": {"a": {"not": {}}}}'),
    ("json_schema", "[1"),
    ("json_schema", ""),
    ("regex", "(ab|c){1,3}"),
    ("regex", "(a"),
    ("regex", "a(?=b)"),
    ("choice", ["yes", "no", "é🙂"]),
    ("choice", []),
    ("choice", ["a", ""]),
    ("lark", 'start: "a" | "bc"'),
    ("lark", 'root ::= "a" | "bc"'),
    ("lark", "start: <|no such token|>"),
    ("lark", "start"),
)
SAMPLING = {
    "temperature": st.sampled_from((-1.0, 0.0, 0.5, 1.0, 100.0, 100.5)),
    "top_k": st.sampled_from((0, 1, 5, 2**30, 2**30 + 1, 2**32 - 1)),
    "top_p": st.sampled_from((-0.5, 0.0, 0.01, 0.9, 1.0, 1.5)),
    "min_p": st.sampled_from((-0.5, 0.0, 0.1, 1.0, 1.5)),
    "repetition_penalty": st.sampled_from((0.0, 0.005, 0.01, 1.3, 100.0, 100.5)),
    "presence_penalty": st.sampled_from((-2.5, -2.0, 0.7, 2.0, 2.5)),
    "frequency_penalty": st.sampled_from((-2.5, -2.0, 0.7, 2.0, 2.5)),
    "logit_bias": st.dictionaries(IDS, st.sampled_from((-100.5, -100.0, 0.0, 5.5, 100.0, 100.5)), max_size=3)
    | st.sampled_from((1024, 1025)).map(lambda num: dict.fromkeys(range(num), 0.5)),
}
SCALARS = {
    "max_tokens": st.sampled_from((None, 0, 1, 8, CONTEXT_LENGTH - 20, CONTEXT_LENGTH, 2**31, 2**32 - 1)),
    "min_tokens": st.sampled_from((0, 1, 3, 4, 2**32 - 1)),
    "n": st.sampled_from((0, 1, 2, 16, 17, 2**32 - 1)),
    "seed": st.sampled_from((0, 1, 2**63, 2**64 - 1)),
    "stop": st.lists(TEXTS | st.sampled_from(("x" * 256, "x" * 257)), max_size=3) | st.just(["a"] * 17),
    "stop_token_ids": st.lists(IDS, max_size=3) | st.sampled_from((256, 257)).map(lambda num: list(range(num))),
    "logprobs": st.sampled_from((0, 1, 20, 21, 2**32 - 1)),
    "prompt_logprobs": st.sampled_from((0, 1, 20, 21, 2**32 - 1)),
    "ignore_eos": st.booleans(),
    "gamma": st.sampled_from((0, 1, 4, 64, 65, 2**32 - 1)),
    "gate": st.sampled_from(("none", "target_confidence", "draft_confidence", "auto")),
    "gate_threshold": st.sampled_from((-0.5, 0.0, 0.5, 1.0, 1.5)),
    "draft_threshold": st.sampled_from((-0.5, 0.0, 0.5, 1.5)),
    "verification": st.sampled_from(("shared_noise", "rejection")),
    "cache_salt": st.sampled_from(("", "a", "é🙂" * 128, "x" * 257)),
}
OTHERS = {
    "prompt": TEXTS
    | st.lists(IDS, max_size=3)
    | st.sampled_from((CONTEXT_LENGTH - 3, CONTEXT_LENGTH)).map(lambda num: [5] * num),
    "grammar": st.sampled_from(GRAMMARS),
    "stream": st.booleans(),
}
FIELDS: dict[str, st.SearchStrategy[Any]] = SAMPLING | SCALARS | OTHERS
HTTP_GRAMMARS = {"json_schema": "json", "regex": "regex", "choice": "choice", "lark": "grammar"}


@st.composite
def requests(draw: Any) -> Request:
    """A request that is answered, but for at most four fields of any value that both doors can carry."""
    names = draw(st.lists(st.sampled_from(tuple(FIELDS)), min_size=1, max_size=4, unique=True))
    return BASE | {name: draw(FIELDS[name]) for name in names}


class Verdict(NamedTuple):
    """What a door said: a word for the outcome, the field at fault in HTTP's words, and the texts of all choices."""

    outcome: str
    field: str | None = None
    texts: tuple[str, ...] = ()


def http_body(request: Request) -> Request:
    """Return what HTTP is told."""
    body = {"model": MODEL} | {name: value for name, value in request.items() if value is not None}
    if "grammar" in body:
        kind, text = body.pop("grammar")
        body["structured_outputs"] = {HTTP_GRAMMARS[kind]: text}
    return body


def grpc_message(request: Request) -> Any:
    """Return what gRPC is told."""
    params = gpb.GenerationParams(
        sampling=types_pb2.SamplingParams(**{name: request[name] for name in SAMPLING if name in request}),
        **{name: request[name] for name in SCALARS if name in request and name not in ("gate", "verification")},
    )
    for name, prefix in (("gate", "GATE"), ("verification", "VERIFICATION")):
        if name in request:
            setattr(params, name, f"{prefix}_{request[name].upper()}")
    if "grammar" in request:
        kind, text = request["grammar"]
        value = types_pb2.Choice(texts=text) if kind == "choice" else text
        params.grammar.CopyFrom(types_pb2.Grammar(**{kind: value}))
    prompt = request["prompt"]
    said: Any = {"text": prompt} if isinstance(prompt, str) else {"token_ids": gpb.TokenIds(ids=prompt)}
    make = gpb.GenerateStreamRequest if request.get("stream") else gpb.GenerateRequest
    return make(params=params, **said)


def http_verdict(status: int, body: bytes) -> Verdict:
    """Return what an answer says, whole or streamed. Of a stream its error event, if it has one."""
    if not body.startswith(b"data: "):
        return _whole(status, json.loads(body))
    texts: dict[int, str] = {}
    for event in body.decode().split("\n\n"):
        if not event.startswith("data: {"):
            continue
        chunk = json.loads(event.removeprefix("data: "))
        if "error" in chunk:
            return _whole(0, chunk)
        for choice in chunk["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return Verdict("OK", None, tuple(texts[index] for index in sorted(texts)))


def _whole(status: int, body: Any) -> Verdict:
    if status == 200:
        return Verdict("OK", None, tuple(choice["text"] for choice in body["choices"]))
    error = body["error"]
    kinds = {"invalid_request_error": "INVALID_ARGUMENT", "rate_limit_error": "RESOURCE_EXHAUSTED"}
    return Verdict(kinds.get(error["type"], error["type"]), error["param"])


def grpc_verdict(channel: grpc.Channel, request: Request, timeout_s: float) -> Verdict:
    message = grpc_message(request)
    path = "/specgate.v1.GenerationService/Generate"
    try:
        if request.get("stream"):
            call = channel.unary_stream(
                path + "Stream", type(message).SerializeToString, gpb.GenerateStreamResponse.FromString
            )
            return _streamed(call(message, timeout=timeout_s))
        unary = channel.unary_unary(path, type(message).SerializeToString, gpb.GenerateResponse.FromString)
        first = unary(message, timeout=timeout_s)
    except grpc.RpcError as error:
        return Verdict(error.code().name, _field_of(error, request))
    return Verdict("OK", None, tuple(one.text for one in (first, *first.others)))


def _streamed(call: Any) -> Verdict:
    texts: dict[int, str] = {}
    for delta in call:
        texts[delta.index] = texts.get(delta.index, "") + delta.text
    return Verdict("OK", None, tuple(texts[index] for index in sorted(texts)))


def _field_of(error: grpc.RpcError, request: Request) -> str | None:
    """Return the field at fault in HTTP's words."""
    told = from_rpc_error(error)
    if not isinstance(told, InvalidArgument):
        return None
    names = {"text": "prompt", "token_ids": "prompt", "prompt_token_ids": "prompt", "grammar": "structured_outputs"}
    if "grammar" in request:
        kind, _ = request["grammar"]
        names[f"grammar.{kind}"] = f"structured_outputs.{HTTP_GRAMMARS[kind]}"
    return with_client_field(told, names).field
