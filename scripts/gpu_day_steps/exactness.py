"""Does the text depend on anything that it may not depend on? The bundled pair, through the services."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace

from gpu_day_steps.serving import Prompts, connected, prompts_of, service, started
from gpu_day_steps.sizes import sizes
from gpu_day_steps.step import CheckFailed, Context
from orchestrator.api.settings.settings import BUNDLED_DRAFT, BUNDLED_TARGET
from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.policy.gates import Gate
from specgate.types import SamplingParams, Verification
from specgate_lab.arrivals import all_of
from specgate_lab.peers.bare_loop import BareLoopProcess
from specgate_lab.proof.judge import judge_greedy, judge_seeded
from specgate_lab.proof.plan import greedy_request, seeded_request
from specgate_lab.proof.report import Check, CheckResult
from specgate_lab.proof.runs import record_all
from specgate_lab.proof.texts import drafts_of
from specgate_lab.timeline import RequestTimeline

GAMMA = 4
GRAPHS = ("graphs", "no graphs")
Pairs = Mapping[str, Orchestrator]
"""By what their services do: with graphs, without."""
Requests = Sequence[GenerationRequest]
Runs = dict[str, list[RequestTimeline]]


def of_dtype(context: Context) -> str:
    """Fail where texts part at no near tie. The step's argument is the number format."""
    dtype = "float32" if context.where.dry else context.argument
    checks = asyncio.run(_checks(context, dtype, prompts_of(BUNDLED_TARGET, sizes(context).prompts)))
    for check in checks:
        context.row(check=check.name, outcome=str(check.outcome), message=check.message, details=list(check.details))
    # A shared-noise text of another number format than float32 may part where nothing counts near ties.
    undecided_is_fine = dtype != "float32"
    fine = {CheckResult.PASS, CheckResult.NEAR_TIE} | ({CheckResult.UNDECIDED} if undecided_is_fine else set())
    if failed := [check for check in checks if check.outcome not in fine]:
        raise CheckFailed("; ".join(" ".join((one.name, one.message, *one.details)) for one in failed))
    told = "; ".join(f"{check.name} {check.outcome}, {check.message.partition(';')[0]}" for check in checks)
    return told if dtype == context.argument else f"{told}; dry: in {dtype}"


async def _checks(context: Context, dtype: str, prompts: Prompts) -> list[Check]:
    async with AsyncExitStack() as stack:
        loop = BareLoopProcess(BUNDLED_TARGET, dtype=dtype, device=context.where.device, threads=1)
        stack.push_async_callback(loop.stop)
        services = stack.enter_async_context(_services(context, dtype))
        at, _ = await all_of([services, loop.start()])
        pairs = {
            graphs: await stack.enter_async_context(await connected(at[f"verifier {graphs}"], at[f"drafter {graphs}"]))
            for graphs in GRAPHS
        }
        tokens = sizes(context).tokens
        greedy = await _greedy(context, pairs, loop, [greedy_request(ids, tokens) for ids in prompts], dtype)
        seeded = [seeded_request(ids, SamplingParams(), tokens, seed) for seed, ids in enumerate(prompts, start=1)]
        return [greedy, await _seeded(context, pairs, seeded, dtype), await _rejection(context, pairs, seeded)]


def _services(context: Context, dtype: str) -> AbstractAsyncContextManager[dict[str, str]]:
    services = {}
    for graphs in GRAPHS:
        options = {"dtype": dtype, "cuda_graphs": graphs == "graphs", "cpu_graphs": graphs == "graphs"}
        services[f"verifier {graphs}"] = service(context, "verifier", BUNDLED_TARGET, **options)
        services[f"drafter {graphs}"] = service(context, "drafter", BUNDLED_DRAFT, **options)
    return started(context, services)


async def _greedy(context: Context, pairs: Pairs, loop: BareLoopProcess, requests: Requests, dtype: str) -> Check:
    context.progress("greedy texts")
    references, runs = await _texts(pairs, requests)
    runs["transformers"] = [RequestTimeline(token_ids=(await loop.run(request)).token_ids) for request in requests]
    return judge_greedy("greedy", references, runs, dtype)


async def _seeded(context: Context, pairs: Pairs, requests: Requests, dtype: str) -> Check:
    context.progress("texts at temperature 1 with shared noise")
    references, runs = await _texts(pairs, requests)
    return judge_seeded("shared noise", references, runs, dtype)


async def _texts(pairs: Pairs, requests: Requests) -> tuple[list[RequestTimeline], Runs]:
    """Return the references, which are the target's alone, and the same texts in every other way."""
    references = await record_all(pairs[GRAPHS[0]], requests, 1)
    plain = [replace(request, logprobs=None) for request in requests]
    ways = {
        "alone, together": plain,
        f"γ {GAMMA}": [replace(request, gamma=GAMMA) for request in plain],
        "auto": [replace(request, gamma=None, gate=Gate.AUTO) for request in plain],
    }
    runs = {
        f"{graphs}, {way}": await record_all(pair, asked, len(asked))
        for graphs, pair in pairs.items()
        for way, asked in ways.items()
    }
    return references, runs


async def _rejection(context: Context, pairs: Pairs, requests: Requests) -> Check:
    """Speculation by rejection has a law and no text: what is asked is that it runs, and that drafts are accepted.

    Logits that are not finite end a request with an error, so a whole text has none.
    """
    context.progress("texts by rejection")
    asked = [replace(one, gamma=GAMMA, verification=Verification.REJECTION) for one in requests]
    traces = [trace for pair in pairs.values() for trace in await record_all(pair, asked, len(asked))]
    whole = [trace for trace in traces if len(trace.token_ids) == asked[0].max_tokens]
    drafted, accepted = drafts_of(traces)
    is_sound = len(whole) == len(traces) and 0 < accepted <= drafted
    message = f"{len(whole)} of {len(traces)} texts whole, {accepted} of {drafted} drafts accepted"
    return Check("rejection", CheckResult.PASS if is_sound else CheckResult.FAIL, message, (), len(traces), len(whole))
