"""Sessions of all kinds on engines whose forwards are replayed write what they write without graphs."""

import asyncio
from random import Random

import pytest

from specgate.runtime.attention.varlen import VarlenKernel
from specgate.runtime.cuda.graphs import Bucket
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.engine.self_check import prepare
from specgate.runtime.scheduler import Limits
from specgate.types import SessionSpec, Verification
from tests.support.engines import decode_on, expect_same, served
from tests.support.mixed import PLANS, SAMPLINGS, sharing_prompts
from tests.support.models import Mix, load_float32, make_runner, quiet, run_all, write_llama
from tests.support.sessions import Pair, Plan, decode
from tests.support.tape import TapeCapturer, one_operation

VOCAB_SIZE = 64
KV_TOKENS, PAGE_SIZE = 4096, 32
LIMITS = Limits(max_batch_tokens=64, prefill_chunk=16, lone_chunk=32)
BUCKETS = [Bucket(8, 4), Bucket(4, 2), Bucket(1, 1)]
"""Proposals of 8 fit none of them."""


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pair, Pair, list[TapeCapturer]]:
    folder = tmp_path_factory.mktemp("pair")
    target = write_llama(folder / "target", VOCAB_SIZE, seed=1)
    draft = write_llama(folder / "draft", VOCAB_SIZE, seed=2, mix=Mix(1, 0.99))
    plain, recorded, tapes = [], list[ModelRunner](), []
    for path in (target, draft):
        plain.append(make_runner(path, KV_TOKENS, PAGE_SIZE, packs=False))
        loaded = load_float32(path)
        kernel = VarlenKernel(one_operation, loaded.context_length)
        recorded.append(prepare(loaded, KV_TOKENS, PAGE_SIZE, quiet, [kernel], packs=False))
        tapes.append(TapeCapturer())
        recorded[-1].capture(BUCKETS, tapes[-1], quiet)
    return Pair(*plain), Pair(*recorded), tapes


def requests() -> list[tuple[SessionSpec, Plan]]:
    rng = Random(11)
    stream = [rng.randrange(VOCAB_SIZE) for _ in range(400)]
    prompts = sharing_prompts(stream, [rng.randint(3, 60) for _ in SAMPLINGS], num_groups=3)
    verifications = [Verification.REJECTION if i % 3 == 2 else Verification.SHARED_NOISE for i in range(len(prompts))]
    return [
        (SessionSpec(prompt, sampling, rng.getrandbits(64), verification, max_tokens=24), plan)
        for prompt, sampling, verification, plan in zip(
            prompts, SAMPLINGS.values(), verifications, PLANS.values(), strict=True
        )
    ]


async def test_every_text_is_what_it_is_without_graphs(pairs: tuple[Pair, Pair, list[TapeCapturer]]) -> None:
    plain, recorded, tapes = pairs
    mixed = requests()
    expected = [run_all([decode(plain, *request)])[0] for request in mixed]
    opened = asyncio.Barrier(len(mixed))
    async with served(*recorded, LIMITS) as pair:
        generations = await asyncio.gather(*(decode_on(pair, *request, opened) for request in mixed))
    # Another kernel computes what is replayed.
    expect_same("replayed forwards", generations, expected, most_excused=1)
    assert min(tape.num_replays for tape in tapes) > 20
