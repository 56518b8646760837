#!/usr/bin/env python3
"""Structured output on a real model: how many answers are valid, and what the mask costs.

    scripts/real_model                                      # once; makes the folders
    .venv/bin/python scripts/structured_output.py           # 100 answers a mode, five schemas in turns, temperature 1

Each answer has 256 tokens at the most. One that is cut by that is counted apart: JSON that is not closed is no answer.
The rows without a mask ask for the same prompts and as many tokens as the row with the mask had.
"""

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.generation.orchestrator import Generation, Orchestrator
from orchestrator.local.local_services import LocalService, Supervised
from orchestrator.policy.gates import Gate
from orchestrator.services.pool import StaticPool, grpc_health
from orchestrator.services.timeouts import Timeouts
from specgate.types import FinishReason, Grammar, GrammarKind, SamplingParams, Verification

MODELS = Path("~/.cache/specgate/real_models").expanduser()
TARGET, DRAFT = MODELS / "smollm2-135m-instruct", MODELS / "smollm2-135m-instruct-24-layers"
MAX_TOKENS = 256
PATIENT = Timeouts(draft_floor_s=60.0, verdict_floor_s=60.0)
"""A busy machine is no lost drafter: every round is to have its proposal."""
WHITESPACE = {"x-guidance": {"whitespace_pattern": " ?"}}


def text(most: int, least: int = 0) -> dict[str, Any]:
    """Return the schema of a short text."""
    return {"type": "string", "minLength": least, "maxLength": most}


def record(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object that has all of these and nothing else."""
    fixed = {"required": list(properties), "additionalProperties": False}
    return {"type": "object", "properties": properties, **fixed}


SCHEMAS: dict[str, dict[str, Any]] = {
    "a city in Asia": record(
        name=text(24, 1), country=text(24, 1), population={"type": "integer", "minimum": 1000, "maximum": 40000000},
    ),
    "a book that you like": record(
        title=text(40, 1), author=text(30, 1), year={"type": "integer", "minimum": 1800, "maximum": 2025},
        genres={"type": "array", "items": {"enum": ["novel", "poetry", "history"]}, "minItems": 1, "maxItems": 3},
    ),
    "the weather of tomorrow": record(
        sky={"enum": ["clear", "cloudy", "rain", "snow"]}, celsius={"type": "number", "minimum": -30, "maximum": 45},
        windy={"type": "boolean"},
    ),
    "a shopping list": record(
        items={"type": "array", "minItems": 1, "maxItems": 4,
               "items": record(what=text(16, 1), count={"type": "integer", "minimum": 1, "maximum": 12})},
    ),
    "a meeting": record(
        day={"type": "string", "pattern": "^2026-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])$"}, title=text(30, 1),
        who={"type": "array", "items": text(14, 1), "maxItems": 3}, room={"anyOf": [{"type": "null"}, text(8, 1)]},
    ),
}  # fmt: skip


class Case(NamedTuple):
    """One request, and the schema that its answer must follow."""

    schema: dict[str, Any]
    request: GenerationRequest


class Result(NamedTuple):
    """What a row's answers came to. Seconds are of all of them, one after the other."""

    num_valid: int
    num_cut: int
    num_invalid: int
    num_tokens: int
    num_accepted: int
    num_drafted: int
    seconds: float

    def told(self, name: str) -> str:
        """Return it as a line."""
        valid = f"{self.num_valid} valid, {self.num_cut} cut, {self.num_invalid} invalid"
        rate, acceptance = self.num_tokens / self.seconds, self.num_accepted / max(1, self.num_drafted)
        return f"{name:<24} {valid:<36} {rate:6.1f} tokens/s  acceptance {acceptance:.3f}  ({self.num_tokens} tokens)"


@asynccontextmanager
async def connected(target: Path, draft: Path) -> AsyncIterator[Orchestrator]:
    """Start both models as processes of their own."""
    async with AsyncExitStack() as stack:
        pools = {}
        for role, model in (("verifier", target), ("drafter", draft)):
            service = Supervised(LocalService.of(role, str(model), kv_tokens=16_384), on_notice=print)
            stack.push_async_callback(service.stop)
            await service.start(lambda *_: None)
            pools[role] = StaticPool((service.endpoint,), grpc_health(None), field=role)
        tokenizer = TextTokenizer.load(str(target))
        connecting = Orchestrator.connect(pools["verifier"], pools["drafter"], tokenizer, timeouts=PATIENT)
        yield await stack.enter_async_context(await connecting)


def cases(orchestrator: Orchestrator, count: int, verification: Verification, gamma: int) -> list[Case]:
    """Return so many requests, the schemas in turns."""
    tokenizer = orchestrator.tokenizer
    if tokenizer is None:
        raise SystemExit("the target has no tokenizer")
    made = []
    for seed in range(count):
        what, schema = list(SCHEMAS.items())[seed % len(SCHEMAS)]
        messages = [{"role": "user", "content": f"Describe {what} as JSON."}]
        prompt = tokenizer.encode_chat(messages, add_generation_prompt=True, continue_final_message=False)
        grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema | WHITESPACE))
        request = GenerationRequest(prompt, SamplingParams(), MAX_TOKENS, seed, gamma=gamma, gate=Gate.NONE)
        made.append(Case(schema, replace(request, verification=verification, grammar=grammar)))
    return made


async def run(orchestrator: Orchestrator, asked: Sequence[Case], is_valid: Callable[[str, Any], bool]) -> Result:
    """Ask one after the other."""
    generations: list[Generation] = []
    start_s = time.perf_counter()
    for case in asked:
        generation = orchestrator.generate(case.request)
        async for _ in generation:
            pass
        generations.append(generation)
    seconds = time.perf_counter() - start_s
    pairs = list(zip(asked, generations, strict=True))
    num_cut = sum(one.finish_reason is FinishReason.LENGTH for one in generations)
    num_valid = sum(is_valid(one.text, case.schema) for case, one in pairs if one.finish_reason is FinishReason.STOP)
    stats = [one.stats for one in generations]
    return Result(
        num_valid,
        num_cut,
        len(pairs) - num_valid - num_cut,
        sum(one.completion_tokens for one in stats),
        sum(one.accepted for one in stats),
        sum(one.drafted for one in stats),
        seconds,
    )


def follows(answer: str, schema: Any) -> bool:
    """Return whether an answer is JSON that the schema has, by jsonschema."""
    import jsonschema

    try:
        jsonschema.validate(json.loads(answer), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


async def main(arguments: argparse.Namespace) -> None:
    """Measure all rows, and print a line for each."""
    async with connected(arguments.target, arguments.draft) as orchestrator:
        for verification in arguments.verification:
            for gamma in (arguments.gamma, 0):
                asked = cases(orchestrator, arguments.count if gamma else arguments.count // 5, verification, gamma)
                await run(orchestrator, asked[:5], follows)
                result = await run(orchestrator, asked, follows)
                print(result.told(f"{verification}, gamma {gamma}"), flush=True)
                length = max(1, result.num_tokens // len(asked))
                some = [one.request for one in asked[: arguments.count // 5]]
                free = [replace(one, grammar=None, max_tokens=length, ignore_eos=True) for one in some]
                unmasked = await run(orchestrator, [Case({}, one) for one in free], follows)
                print(unmasked.told("  without the mask"), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, default=TARGET)
    parser.add_argument("--draft", type=Path, default=DRAFT)
    parser.add_argument("--count", type=int, default=100, help="answers a mode")
    parser.add_argument("--verification", type=Verification, nargs="+", default=list(Verification), help="modes")
    parser.add_argument("--gamma", type=int, default=4, help="draft tokens a round")
    asyncio.run(main(parser.parse_args()))
