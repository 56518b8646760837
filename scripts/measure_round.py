#!/usr/bin/env python3
"""What a round takes beside its forwards, part by part, in real rounds of a model of nothing.

    python scripts/measure_round.py                              # both vocabularies, over gRPC and in one process
    python scripts/measure_round.py --device cuda:0 --json round.json
    python scripts/measure_round.py --vocabulary 4096 --rounds 200

Drafter and verifier serve one random model of one layer, so every draft is accepted. Over gRPC each of them has a core
of its own, where there are several. Medians of microseconds a round, five draft tokens in it. A part is what lies
between two stamps, so that all parts add up to the round. Where a draft is one call, its choices are in "forwards". On
a card forwards run beside the host: "read" waits for them, and what they took is told apart.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from enum import StrEnum
from functools import cache
from pathlib import Path
from shutil import copy
from typing import NamedTuple

import torch
import uvloop
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import round_stamps
from pair_shapes import PAIRS, TINY
from round_parts import Round, medians_of, rounds_of
from round_stamps import Stamp

from orchestrator.api.settings.settings import BUNDLED_TARGET
from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.local.cores import cores_for_pinning
from orchestrator.local.in_process import InProcessPool, loaded
from orchestrator.local.local_services import LocalService, Supervised
from orchestrator.policy.gates import Gate
from orchestrator.services.pool import StaticPool
from specgate.types import SamplingParams

GAMMA = 5
CONTEXT_LENGTH = 1024
WARM_UP_ROUNDS = 20
TEMPERATURES = {"greedy": 0.0, "temperature 1": 1.0}
VOCABULARIES = PAIRS["bundled"].vocab_size, PAIRS["smollm2"].vocab_size


class Services(StrEnum):
    """Where drafter and verifier are."""

    GRPC = "gRPC"
    ONE_PROCESS = "one process"
    RUN_AHEAD = "gRPC, run-ahead"


class Way(NamedTuple):
    """What is measured: where the services are, what they serve, and how tokens are chosen."""

    services: Services
    vocab_size: int
    sampling: str

    def __str__(self) -> str:
        return f"{self.services}, {self.vocab_size} tokens, {self.sampling}"


def main() -> None:
    """Measure all ways; print a table, and write JSON where that is asked for."""
    arguments = _arguments()
    measured: dict[Way, list[Round]] = {}
    for vocab_size in arguments.vocabulary or VOCABULARIES:
        measured |= measured_rounds(vocab_size, arguments.rounds, arguments.device)
    medians = {str(way): medians_of(rounds) for way, rounds in measured.items()}
    Console(width=max(Console().width, 160)).print(_table(medians))
    if arguments.json:
        arguments.json.write_text(json.dumps(medians, indent=1) + "\n", "utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument(
        "--vocabulary", type=int, action="append", help="repeatable; bundled and SmolLM2's where absent"
    )
    parser.add_argument("--rounds", type=int, default=500, help="of each way")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the medians there")
    return parser.parse_args()


def measured_rounds(
    vocab_size: int, num_rounds: int, device: str, services: Sequence[Services] = tuple(Services)
) -> dict[Way, list[Round]]:
    """Return the parts of every round, by way: greedy and at temperature 1 on each of these services.

    With run-ahead a round is what its drafter and verifier make of it, so only the whole of it is told.
    """
    _install()
    measured: dict[Way, list[Round]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = _write_model(folder / "model", vocab_size)
        for one in services:
            for sampling, rounds in uvloop.run(_measure(one, model, folder, num_rounds, device)).items():
                measured[Way(one, vocab_size, sampling)] = rounds
    return measured


@cache
def _install() -> None:
    round_stamps.install()


def _write_model(folder: Path, vocab_size: int) -> str:
    torch.manual_seed(0)
    config = LlamaConfig(
        **TINY, vocab_size=vocab_size, max_position_embeddings=CONTEXT_LENGTH, bos_token_id=0, eos_token_id=None
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = json.loads(Path(BUNDLED_TARGET, "tokenizer.json").read_text("utf-8"))
    known = tokenizer["model"]["vocab"]
    known |= {f"Ġword{number}": number for number in range(len(known), vocab_size)}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    copy(Path(BUNDLED_TARGET, "tokenizer_config.json"), folder)
    return str(folder)


async def _measure(
    services: Services, model: str, folder: Path, num_rounds: int, device: str
) -> dict[str, list[Round]]:
    spans: dict[str, tuple[int, int]] = {}
    async with _opened(services, model, folder, device) as orchestrator:
        for sampling, temperature in TEMPERATURES.items():
            await _decode(orchestrator, temperature, WARM_UP_ROUNDS)
            begin = time.perf_counter_ns()
            await _decode(orchestrator, temperature, num_rounds)
            spans[sampling] = begin, time.perf_counter_ns()
    # The services' stamps are there once they have ended.
    stamps = sorted([*round_stamps.taken(), *_of_services(folder)])
    return {
        sampling: list(rounds_of([one for one in stamps if begin <= one[0] < end], services is Services.RUN_AHEAD))
        for sampling, (begin, end) in spans.items()
    }


def _opened(services: Services, model: str, folder: Path, device: str) -> AbstractAsyncContextManager[Orchestrator]:
    if services is Services.ONE_PROCESS:
        return _in_process(model, device)
    return _over_grpc(model, folder, device, 4 if services is Services.RUN_AHEAD else 0)


def _of_services(folder: Path) -> Iterator[Stamp]:
    for file in folder.glob("*.json"):
        yield from ((start, name, end) for start, name, end in json.loads(file.read_text("utf-8")))
        file.unlink()


class Stamped(LocalService):
    """A service that leaves stamps behind."""

    @property
    def module(self) -> str:
        return "round_stamps"

    def arguments(self, port: int) -> list[str]:
        return [self.role, *super().arguments(port)]


@asynccontextmanager
async def _over_grpc(model: str, folder: Path, device: str, run_ahead: int) -> AsyncIterator[Orchestrator]:
    os.environ[round_stamps.FOLDER] = str(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    drafter, verifier = _services(model, device, run_ahead, *(cores_for_pinning() or (None, None)))
    async with AsyncExitStack() as stack:
        pools = {}
        for service in (drafter, verifier):
            supervised = Supervised(Stamped(service.role, service.settings, service.cpu), print)
            stack.push_async_callback(supervised.stop)
            await supervised.start(lambda *stage: None)
            pools[service.role] = StaticPool((supervised.endpoint,), field=service.role)
        connecting = Orchestrator.connect(pools["verifier"], pools["drafter"], TextTokenizer.load(model))
        yield await stack.enter_async_context(await connecting)


@asynccontextmanager
async def _in_process(model: str, device: str) -> AsyncIterator[Orchestrator]:
    services = _services(model, device, 0)
    async with loaded(services, lambda *stage: None, print) as dialer:
        pools = InProcessPool(), InProcessPool()
        async with await Orchestrator.connect(*pools, TextTokenizer.load(model), dialer=dialer) as orchestrator:
            yield orchestrator


def _services(
    model: str, device: str, run_ahead: int, drafter_core: int | None = None, verifier_core: int | None = None
) -> tuple[LocalService, LocalService]:
    settings = {"device": device, "max_sessions": 2, "kv_tokens": 2 * CONTEXT_LENGTH}
    return (
        LocalService.of("drafter", model, cpu=drafter_core, run_ahead=run_ahead, **settings),
        LocalService.of("verifier", model, cpu=verifier_core, **settings),
    )


async def _decode(orchestrator: Orchestrator, temperature: float, num_rounds: int) -> None:
    sampling = SamplingParams(temperature=temperature)
    while num_rounds > 0:
        tokens = min(num_rounds * (GAMMA + 1), CONTEXT_LENGTH - 16)
        request = GenerationRequest(
            (1, 2, 3, 4), sampling, max_tokens=tokens, seed=num_rounds, gamma=GAMMA, gate=Gate.NONE
        )
        async for _ in orchestrator.generate(request):
            pass
        num_rounds -= tokens // (GAMMA + 1)


def _table(medians: Mapping[str, Mapping[str, float]]) -> Table:
    table = Table("µs a round, median", *medians)
    for part in dict.fromkeys(part for one in medians.values() for part in one):
        table.add_row(part, *(f"{one[part]:.0f}" if part in one else "" for one in medians.values()))
    return table


if __name__ == "__main__":
    main()
