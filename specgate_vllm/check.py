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
GAMMA = 4


async def asked(endpoint: str, settings: Settings, target: str) -> tuple[bool, str]:
    """Return whether a drafter can be used, and what it is or what is wrong with it."""
    try:
        async with asyncio.timeout(ANSWER_S), open_channel(endpoint, settings) as channel:
            stub: Any = DrafterServiceStub(channel)
            info = await stub.GetModelInfo(types_pb2.GetModelInfoRequest())
            start_s = time.monotonic()
            num_tokens = await _drafted(stub.Draft(), fingerprint(target))
            took = f"{num_tokens} tokens in {(time.monotonic() - start_s) * 1000:.1f} ms"
            return True, f"{info.model}, {info.dtype} on {info.device}, context {info.context_length}; {took}"
    except grpc.aio.AioRpcError as error:
        return False, error.details() or error.code().name
    except (TimeoutError, OSError) as error:
        return False, str(error) or f"no answer within {ANSWER_S:g} s"


async def _drafted(call: Any, digests: dict[str, str]) -> int:
    """Open a session, let it draft, and return the number of tokens."""
    spec = types_pb2.SessionSpec(
        prompt_token_ids=[1],
        sampling=types_pb2.SamplingParams(temperature=0.0),
        verification=types_pb2.VERIFICATION_SHARED_NOISE,
        max_tokens=2 * GAMMA,
        tokenizer_fingerprint=digests,
    )
    try:
        await call.write(pb.DraftRequest(open=spec))
        await call.read()
        await call.write(pb.DraftRequest(round=pb.DraftRound(round=1, position=1, gamma=GAMMA)))
        while not (response := await call.read()).round:
            pass
        return len(response.proposal.draft_token_ids)
    finally:
        call.cancel()


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
    print(f"vLLM {hook.installed_version() or 'is not here'}; tried: {', '.join(hook.TRIED)}")
    answers = [asyncio.run(asked(endpoint, settings, options.target)) for endpoint in settings.drafters]
    for endpoint, (is_well, told) in zip(settings.drafters, answers, strict=True):
        print(f"{endpoint}: {'' if is_well else 'cannot be used: '}{told}")
    return int(not all(is_well for is_well, _ in answers))


if __name__ == "__main__":
    sys.exit(main())
