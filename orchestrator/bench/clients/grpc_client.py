"""A client of GenerationService: a prompt in, the deltas of the decode loop out."""

from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import grpc

from orchestrator.decode.request import Delta, GenerationRequest, GenerationStats
from orchestrator.services.streams import answered_by
from specgate.errors import InternalError
from specgate.rpc.channel import open_channel
from specgate.rpc.convert import token_logprobs_from_pb
from specgate.rpc.convert_grammar import grammar_to_pb
from specgate.rpc.convert_session import sampling_params_to_pb, verification_to_pb
from specgate.rpc.status import from_rpc_error
from specgate.rpc.tls import ClientTlsFiles
from specgate.types import DraftMethod, FinishReason, TokenSource
from specgate.v1 import generation_service_pb2 as pb2
from specgate.v1 import types_pb2
from specgate.v1.generation_service_pb2_grpc import GenerationServiceStub

# By name, which both sides share: gate "none" is GATE_NONE, source "solo" is TOKEN_SOURCE_SOLO.
_SOURCES: Mapping[int, TokenSource] = {
    pb2.TokenSource.Value(f"TOKEN_SOURCE_{source.name}"): source for source in TokenSource
}
_FINISH_REASONS: Mapping[int, FinishReason] = {
    types_pb2.FinishReason.Value(f"FINISH_REASON_{reason.name}"): reason for reason in FinishReason
}
_STATS = {"drafted": "drafted_tokens", "accepted": "accepted_tokens"}
_NOT_SENT = {"outcomes", "batch_widths", "prepared", "draft_lengths"} | {
    f"{name}_us" for name in ("draft", "verify", "round", "solo", "forwards")
}


class GrpcClient:
    """One channel to one gRPC door; use it as ``async with``.

    ``stats`` are those of the last stream that was read to its end. Times and outcomes of rounds stay on the server.
    """

    def __init__(self, endpoint: str, tls: ClientTlsFiles | None = None) -> None:
        self._endpoint = endpoint
        self._channel = open_channel(endpoint, tls)
        self._stub: Any = GenerationServiceStub(self._channel)
        self.stats = GenerationStats()

    async def __aenter__(self) -> "GrpcClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def stream(self, request: GenerationRequest, text: str | None = None) -> AsyncGenerator[Delta, None]:
        """Yield the deltas of one generation; closing it early cancels the call.

        Args:
            text: the prompt, in the place of the request's token ids.

        Raises:
            SpecgateError: what the server answered, see ``specgate.errors``.
        """
        call = self._stub.GenerateStream(_request_to_pb(request, text))
        try:
            async for answer in call:
                with answered_by(f"the gRPC door at {self._endpoint}"):
                    delta = _delta_from_pb(answer)
                if answer.HasField("stats"):
                    self.stats = _stats_from_pb(answer.stats)
                yield delta
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        finally:
            call.cancel()

    async def generate(self, request: GenerationRequest, text: str) -> Delta:
        """Return a whole answer to ``text``. Raises as ``stream`` does."""
        try:
            answer = await self._stub.Generate(pb2.GenerateRequest(text=text, params=_params_to_pb(request)))
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        with answered_by(f"the gRPC door at {self._endpoint}"):
            return _delta_from_pb(answer)


def _request_to_pb(request: GenerationRequest, text: str | None) -> pb2.GenerateStreamRequest:
    prompt: dict[str, Any] = {"text": text}
    if text is None:
        prompt = {"token_ids": pb2.TokenIds(ids=request.prompt_token_ids)}
    return pb2.GenerateStreamRequest(**prompt, params=_params_to_pb(request))


def _params_to_pb(request: GenerationRequest) -> pb2.GenerationParams:
    return pb2.GenerationParams(
        sampling=sampling_params_to_pb(request.sampling),
        max_tokens=request.max_tokens,
        seed=request.seed,
        stop=request.stop,
        stop_token_ids=sorted(request.stop_token_ids),
        ignore_eos=request.ignore_eos,
        gamma=request.gamma,
        gate=f"GATE_{request.gate.name}",
        gate_threshold=request.threshold,
        verification=verification_to_pb(request.verification),
        logprobs=request.logprobs,
        cache_salt=request.cache_salt,
        grammar=grammar_to_pb(request.grammar),
    )


def _delta_from_pb(pb: pb2.GenerateStreamResponse | pb2.GenerateResponse) -> Delta:
    unknown = set(pb.sources) - set(_SOURCES)
    if unknown or len(pb.sources) != len(pb.token_ids):
        raise InternalError(f"{len(pb.token_ids)} token ids came with sources {list(pb.sources)}")
    return Delta(
        token_ids=tuple(pb.token_ids),
        sources=tuple(_SOURCES[source] for source in pb.sources),
        text=pb.text,
        logprobs=tuple(map(token_logprobs_from_pb, pb.logprobs)),
        finish_reason=_FINISH_REASONS.get(pb.finish_reason),
    )


def _stats_from_pb(pb: pb2.GenerationStats) -> GenerationStats:
    names = set(GenerationStats.__dataclass_fields__) - _NOT_SENT - {"accepted_by"}
    accepted_by = Counter({DraftMethod(method): count for method, count in pb.accepted_by.items()})
    return GenerationStats(accepted_by=accepted_by, **{name: getattr(pb, _STATS.get(name, name)) for name in names})
