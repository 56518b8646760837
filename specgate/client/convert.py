"""Convert the client's values to protobuf and back."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from specgate.client.values import Answer, Chat, ChatMessage, Delta, Params, Prompt, Stats
from specgate.errors import InternalError, InvalidArgument
from specgate.rpc.convert import token_logprobs_from_pb
from specgate.rpc.convert_grammar import grammar_to_pb
from specgate.rpc.convert_session import sampling_params_to_pb, verification_to_pb
from specgate.types import SEED_LIMIT, FinishReason, Gate, TokenSource, Verification, check_range
from specgate.v1 import generation_service_pb2 as pb2
from specgate.v1 import types_pb2

# By name, which both sides share: source "solo" is TOKEN_SOURCE_SOLO.
_SOURCES: Mapping[int, TokenSource] = {
    pb2.TokenSource.Value(f"TOKEN_SOURCE_{source.name}"): source for source in TokenSource
}
_FINISH_REASONS: Mapping[int, FinishReason] = {
    types_pb2.FinishReason.Value(f"FINISH_REASON_{reason.name}"): reason for reason in FinishReason
}
_UINT32_FIELDS = ("max_tokens", "gamma", "logprobs", "prompt_logprobs", "n")
_MAX_UINT32 = (1 << 32) - 1
_STATS = tuple(field.name for field in fields(Stats) if field.name != "accepted_by")
Request = TypeVar("Request", pb2.GenerateStreamRequest, pb2.GenerateRequest)


def request_to_pb(kind: type[Request], prompt: Prompt, params: Params) -> Request:
    """Return the request as protobuf.

    Raises:
        InvalidArgument: protobuf cannot carry a value; the message names the field.
    """
    try:
        return kind(**_prompt_to_pb(prompt), params=_params_to_pb(params))
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidArgument("request", f"cannot be sent: {error}") from None


def _prompt_to_pb(prompt: Prompt) -> dict[str, Any]:
    if isinstance(prompt, str):
        return {"text": _sendable("text", prompt)}
    if isinstance(prompt, Chat):
        messages = [_message_to_pb(index, message) for index, message in enumerate(prompt.messages)]
        return {"chat": pb2.Chat(messages=messages, continue_final_message=prompt.continue_final_message)}
    if any(isinstance(one, ChatMessage) for one in prompt[:1]):
        return _prompt_to_pb(Chat(prompt))  # type: ignore[arg-type]  # the first one tells of all
    return {"token_ids": pb2.TokenIds(ids=prompt)}  # type: ignore[arg-type]


def _message_to_pb(index: int, message: ChatMessage) -> pb2.ChatMessage:
    content = _sendable(f"chat.messages[{index}].content", message.content)
    return pb2.ChatMessage(role=message.role, content=content, name=message.name)


def _sendable(field: str, text: str) -> str:
    """Return ``text``. Raises InvalidArgument if it cannot be encoded in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(field, f"character {error.start} is not valid Unicode") from None
    return text


def _params_to_pb(params: Params) -> pb2.GenerationParams:
    for name in _UINT32_FIELDS:
        check_range(name, getattr(params, name) or 0, 0, _MAX_UINT32)
    check_range("min_tokens", params.min_tokens, 0, _MAX_UINT32)
    check_range("seed", params.seed or 0, 0, SEED_LIMIT - 1)
    return pb2.GenerationParams(
        sampling=sampling_params_to_pb(params),
        seed=params.seed,
        stop=[params.stop] if isinstance(params.stop, str) else params.stop,
        stop_token_ids=sorted(params.stop_token_ids),
        ignore_eos=params.ignore_eos,
        min_tokens=params.min_tokens,
        gate=None if params.gate is None else f"GATE_{Gate(params.gate).name}",
        gate_threshold=params.gate_threshold,
        draft_threshold=params.draft_threshold,
        verification=None if params.verification is None else verification_to_pb(Verification(params.verification)),
        grammar=grammar_to_pb(params.grammar),
        cache_salt=params.cache_salt,
        **{name: getattr(params, name) for name in _UINT32_FIELDS},
    )


def delta_from_pb(pb: pb2.GenerateStreamResponse) -> Delta:
    """Return the delta. Raises InvalidArgument, InternalError: it is no valid message of GenerationService."""
    return Delta(**_shared(pb), index=pb.index)


def answer_from_pb(pb: pb2.GenerateResponse, index: int = 0) -> Answer:
    """Return the answer. Raises as ``delta_from_pb`` does."""
    others = tuple(answer_from_pb(other, number) for number, other in enumerate(pb.others, start=1))
    return Answer(**_shared(pb), index=index, others=others)


def _shared(pb: pb2.GenerateStreamResponse | pb2.GenerateResponse) -> dict[str, Any]:
    unknown = set(pb.sources) - set(_SOURCES)
    if unknown or len(pb.sources) != len(pb.token_ids):
        raise InternalError(f"{len(pb.token_ids)} token ids came with sources {list(pb.sources)}")
    return {
        "text": pb.text,
        "token_ids": tuple(pb.token_ids),
        "sources": tuple(_SOURCES[source] for source in pb.sources),
        "logprobs": tuple(map(token_logprobs_from_pb, pb.logprobs)),
        "prompt_logprobs": tuple(map(token_logprobs_from_pb, pb.prompt_logprobs)),
        "finish_reason": _FINISH_REASONS.get(pb.finish_reason),
        "stats": _stats_from_pb(pb.stats) if pb.HasField("stats") else None,
    }


def _stats_from_pb(pb: pb2.GenerationStats) -> Stats:
    return Stats(accepted_by=dict(pb.accepted_by), **{name: getattr(pb, name) for name in _STATS})
