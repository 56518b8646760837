"""The first text through both real services: is it what transformers writes?"""

import asyncio
from dataclasses import replace

import torch
from transformers import GenerationConfig

from gpu_day_steps.serving import Prompts, bundled_prompts, connected, service, started
from gpu_day_steps.sizes import sizes
from gpu_day_steps.step import CheckFailed, Context
from orchestrator.api.settings.settings import BUNDLED_DRAFT, BUNDLED_TARGET
from orchestrator.bench.peers.hf_loading import load_model
from orchestrator.bench.proof.judge import judge_greedy
from orchestrator.bench.proof.plan import greedy_request
from orchestrator.bench.proof.report import CheckResult
from orchestrator.bench.proof.runs import record
from orchestrator.bench.proof.texts import TextRecord
from orchestrator.policy.gates import Gate

GAMMA = 4


def through_services(context: Context) -> str:
    """Fail unless the bundled pair, with speculation, writes what transformers' ``generate`` writes, in float32."""
    of = sizes(context)
    prompts = bundled_prompts(of.prompts)
    references, speculated = asyncio.run(_served(context, prompts, of.tokens))
    runs = {"speculation": speculated, "generate": _generated(context, prompts, of.tokens)}
    check = judge_greedy("text", references, runs, "float32")
    context.row(outcome=str(check.outcome), message=check.message, details=list(check.details))
    if check.outcome not in (CheckResult.PASS, CheckResult.NEAR_TIE):
        raise CheckFailed("; ".join((check.message, *check.details)))
    return check.message


async def _served(context: Context, prompts: Prompts, tokens: int) -> tuple[list[TextRecord], list[TextRecord]]:
    """Return the texts of the target alone, and those with speculation."""
    services = {
        "verifier": service(context, "verifier", BUNDLED_TARGET, dtype="float32"),
        "drafter": service(context, "drafter", BUNDLED_DRAFT, dtype="float32"),
    }
    alone = [greedy_request(ids, tokens) for ids in prompts]
    drafted = [replace(one, gamma=GAMMA, gate=Gate.NONE, logprobs=None) for one in alone]
    async with started(context, services) as at, await connected(at["verifier"], at["drafter"]) as orchestrator:
        context.progress("writing texts through the services")
        return [await record(orchestrator, one) for one in alone], [await record(orchestrator, one) for one in drafted]


def _generated(context: Context, prompts: Prompts, tokens: int) -> list[TextRecord]:
    context.progress("writing the same texts by generate")
    device = torch.device(context.where.device)
    model = load_model(BUNDLED_TARGET, "float32", device)
    # Past any end-of-sequence token, as the services were asked to.
    config = GenerationConfig(max_new_tokens=tokens, do_sample=False, pad_token_id=0)
    texts = []
    for ids in prompts:
        prompt = torch.tensor([ids], device=device)
        whole = model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=config)
        texts.append(TextRecord(tuple(whole[0, len(ids) :].tolist())))
    return texts
