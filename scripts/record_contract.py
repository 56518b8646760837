#!/usr/bin/env python3
"""Record what a release says on the wire, for the tests of later ones: one request, from its client to both services.

    cd RELEASE
    PYTHONPATH=. HERE/.venv/bin/python HERE/scripts/record_contract.py HERE/tests/contract/X.Y.Z/recorded.json

RELEASE is a checkout of the release, HERE is this one. The file has one entry a call: its method, and its messages in
base64, "> " for those of the client and "< " for those of the server. Seeds are tried until what was recorded is the
same whenever it is said again, see ``is_repeatable``.
"""

import asyncio
import base64
import importlib.util
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from orchestrator.api.grpc.service import GrpcApi
from orchestrator.api.request_queue import RequestQueue
from orchestrator.api.settings.listen import Listen
from orchestrator.api.settings.settings import Defaults, GatewaySettings
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.services.timeouts import Timeouts
from specgate.rpc.channel import open_channel
from specgate.v1 import generation_service_pb2 as pb
from specgate.v1 import verifier_service_pb2
from specgate.v1.generation_service_pb2_grpc import GenerationServiceStub
from tests.support.orchestrating import connected
from tests.support.services import HELD_OUT_PROMPTS, PAIR, running

RELAY = Path(__file__).parents[1] / "tests/support/relay.py"
spec = importlib.util.spec_from_file_location("relay", RELAY)
relay: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(relay)

IDLE_S = "3"
"""A client that says nothing for a third of it sends a keep-alive."""
PAUSE_S = 1.4
PAUSE_AT = 2
"""The verdict before which there is a pause."""
PATIENT = Timeouts(draft_floor_s=60.0, verdict_floor_s=60.0)
NUM_SEEDS = 40
Calls = list[dict[str, Any]]


class Recorder(relay.Relay):
    """Writes down each call. All recorders of a run share one list."""

    def __init__(self, target: str, calls: Calls) -> None:
        super().__init__(target)
        self._calls = calls

    async def asked(self, method: str, message: bytes) -> bytes:
        self._told(method, ">", message)
        return message

    async def answered(self, method: str, message: bytes) -> bytes:
        call = self._told(method, "<", message)
        if method.endswith("/Verify") and sum(one[0] == "<" for one in call["messages"]) == PAUSE_AT:
            await asyncio.sleep(PAUSE_S)
        return message

    def _told(self, method: str, sign: str, message: bytes) -> dict[str, Any]:
        call = next((one for one in self._calls if (one["method"], one["at"]) == (method, self.endpoint)), None)
        if call is None:
            call = {"method": method, "at": self.endpoint, "messages": []}
            self._calls.append(call)
        call["messages"].append(f"{sign} {base64.b64encode(message).decode()}")
        return call


@asynccontextmanager
async def door(orchestrator: Orchestrator) -> AsyncIterator[str]:
    api = GrpcApi(RequestQueue(orchestrator, GatewaySettings(), Defaults(), "specgate"), Listen(), drain_s=0.0)
    await api.start()
    yield api.endpoint
    await api.drain()


async def recorded(seed: int, endpoints: list[str]) -> Calls:
    calls: Calls = []
    async with AsyncExitStack() as stack:
        drafter, verifier = [await stack.enter_async_context(Recorder(one, calls)) for one in endpoints]
        orchestrator = await stack.enter_async_context(connected([drafter], [verifier], PATIENT))
        front = await stack.enter_async_context(Recorder(await stack.enter_async_context(door(orchestrator)), calls))
        channel = await stack.enter_async_context(open_channel(front.endpoint))
        params = pb.GenerationParams(max_tokens=24, seed=seed, gamma=4, gate=pb.GATE_NONE, logprobs=1)
        request = pb.GenerateStreamRequest(text=HELD_OUT_PROMPTS[0][-120:], params=params)
        async for _ in GenerationServiceStub(channel).GenerateStream(request):
            pass
    for call in calls:
        del call["at"]
    return calls


def is_repeatable(calls: Calls) -> bool:
    """Return whether there are messages of all kinds, and a verifier that is sent them again must answer the same.

    A follow-up that comes true must be of a round that was asked for: whoever sends them again can send it before that
    round. Behind a round that the verifier began by itself it may come too late.
    """
    (messages,) = (call["messages"] for call in calls if call["method"].endswith("/Verify"))
    went_on, expected, num_true, kinds = False, None, 0, set()
    for sign, data in (one.split(" ") for one in messages):
        if sign == ">":
            asked = verifier_service_pb2.VerifyRequest.FromString(base64.b64decode(data))
            kinds.add(asked.WhichOneof("message"))
            if asked.HasField("round"):
                went_on = False
            if asked.HasField("follow_ups"):
                expected = asked.follow_ups
            continue
        verdict = verifier_service_pb2.VerifyResponse.FromString(base64.b64decode(data))
        if comes_true(expected, verdict) and (went_on or not verdict.follow_up):
            return False
        num_true += verdict.follow_up > 0
        went_on = verdict.follow_up > 0
    return num_true > 0 and kinds == {"open", "round", "follow_ups", "keep_alive"}


def comes_true(follow_ups: Any, verdict: Any) -> bool:
    if follow_ups is None or not verdict.last or follow_ups.round != verdict.round + 1:
        return False
    branches, outcome = follow_ups.branches, (verdict.num_accepted, verdict.token_id)
    sizes = branches.num_draft_tokens or [len(branches.token_ids) // len(branches.num_accepted) - 1]
    firsts, place = [], 0
    for index in range(len(branches.num_accepted)):
        firsts.append(branches.token_ids[place])
        place += 1 + sizes[index % len(sizes)]
    return outcome in zip(branches.num_accepted, firsts, strict=True)


async def recording() -> str:
    """Return the text of the file."""
    flags = ("--session-idle-s", IDLE_S)
    with (
        running("drafter", PAIR / "draft", *flags) as drafter,
        running("verifier", PAIR / "target", *flags) as verifier,
    ):
        for seed in range(NUM_SEEDS):
            calls = await recorded(seed, [drafter.endpoint, verifier.endpoint])
            fits = is_repeatable(calls)
            print(seed, {call["method"].rpartition("/")[2]: len(call["messages"]) for call in calls}, fits)
            if fits:
                return json.dumps(calls, indent=1) + "\n"
    raise SystemExit("no seed gave a recording that is the same whenever it is said again")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(asyncio.run(recording()), "utf-8")
