"""Whether the drafters that are set can draft for a target: ``python -m specgate_vllm.check [--target FOLDER]``."""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any

import grpc

from specgate_vllm import hook
from specgate_vllm.drafter import open_channel
from specgate_vllm.settings import InvalidSetting, Settings, read_settings
from specgate_vllm.tokenizer import fingerprint
from specgate_vllm.v1 import drafter_service_pb2 as pb
from specgate_vllm.v1 import types_pb2
from specgate_vllm.v1.drafter_service_pb2_grpc import DrafterServiceStub

ANSWER_S = 10.0
ASK = pb.DraftRequest(round=pb.DraftRound(round=1, position=1, gamma=4))


async def asked(endpoint: str, settings: Settings, target: str) -> str:
    """Return what a drafter is, and how fast. Raises OSError, TimeoutError and AioRpcError where it cannot be used."""
    opening = types_pb2.SessionSpec(
        prompt_token_ids=[1],
        sampling=types_pb2.SamplingParams(temperature=0.0),
        verification=types_pb2.VERIFICATION_SHARED_NOISE,
        max_tokens=8,
        tokenizer_fingerprint=fingerprint(target),
    )
    async with asyncio.timeout(ANSWER_S), open_channel(endpoint, settings) as channel:
        stub: Any = DrafterServiceStub(channel)
        info = await stub.GetModelInfo(types_pb2.GetModelInfoRequest())
        call, start_s = stub.Draft(), time.monotonic()
        await call.write(pb.DraftRequest(open=opening))
        await call.read()
        await call.write(ASK)
        while not (response := await call.read()).round:
            pass
        took = f"{len(response.proposal.draft_token_ids)} tokens in {(time.monotonic() - start_s) * 1000:.1f} ms"
        call.cancel()
        return f"{info.model}, {info.dtype} on {info.device}, context {info.context_length}; {took}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for vLLM and for each drafter; return 1 where one cannot be used."""
    parser = argparse.ArgumentParser(prog="specgate_vllm.check", description="Ask the drafters that are set.")
    parser.add_argument("drafters", nargs="*", metavar="HOST:PORT", help="in place of SPECGATE_DRAFTERS")
    parser.add_argument("--target", default="", help="folder of the target, whose vocabulary is compared")
    options = parser.parse_args(arguments)
    try:
        settings = read_settings({"drafters": options.drafters} if options.drafters else {})
    except InvalidSetting as error:
        print(error, file=sys.stderr)
        return 1
    print(f"vLLM {hook.installed_version() or 'is not here'}; written for: {', '.join(hook.WRITTEN_FOR)}")
    code = 0
    for endpoint in settings.drafters:
        try:
            told = asyncio.run(asked(endpoint, settings, options.target))
        except (OSError, TimeoutError, grpc.aio.AioRpcError) as error:
            why = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
            told, code = f"cannot be used: {why or f'no answer within {ANSWER_S:g} s'}", 1
        print(f"{endpoint}: {told}")
    return code


if __name__ == "__main__":
    sys.exit(main())
