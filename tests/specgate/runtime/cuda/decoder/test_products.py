"""The kernels for up to 16 rows compute what torch does, and a row's bits depend on its own prefix alone."""

import asyncio
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from specgate.runtime.attention.packing import Layout, Packing, unpack
from specgate.runtime.cuda.decoder.few_row_kernels import FewRowKernels
from specgate.runtime.cuda.decoder.few_rows import FewRows, Kernels
from specgate.runtime.cuda.graphs import FEW_ROWS
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.kv_pages import KVSequence
from specgate.runtime.scheduler import Limits, Rows
from specgate.types import SamplingParams, SessionSpec
from tests.support.engines import decode_on, served
from tests.support.models import Mix, eager_logits, load_float32, make_runner, write_llama, write_model
from tests.support.sessions import Generation, Plan, make_spec
from tests.support.torch_few_rows import TorchFewRowKernels
from tests.support.triton_few_rows import SEVERAL_PROGRAMS, multiply_row_by_row, runner_with_kernels

pytestmark = pytest.mark.triton
ROOT = Path(__file__).resolve().parents[5]
VOCAB = 101
ODD: dict[str, Any] = {
    "hidden": 72, "intermediate_size": 90, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 12,
}  # fmt: skip
"""No multiple of anything that a program takes at a time."""
SALTS = itertools.count()


class Usage(NamedTuple):
    """Of a kernel: registers a thread, shared bytes, and matrix instructions."""

    registers: int
    shared: int
    matrix: int


PINNED = {
    "embed": Usage(22, 64, 0),
    "rotate": Usage(64, 61440, 16),
    "attend": Usage(96, 20736, 16),
    "add_attended": Usage(54, 81920, 64),
    "gate": Usage(64, 61440, 16),
    "add_gated": Usage(39, 81920, 8),
    "head": Usage(56, 36864, 8),
}
"""SmolLM2-1.7B's shape."""


def ids_of(length: int, step: int = 5) -> list[int]:
    return [3 + step * place % (VOCAB - 3) for place in range(length)]


def opened(runner: ModelRunner, ids: Sequence[int], num_cached: int) -> KVSequence:
    """Open a sequence that shares no page, and run so many of its tokens, more than 16."""
    sequence = runner.pool.open(ids, len(ids), salt=str(next(SALTS)))
    runner.pool.extend(sequence, len(ids))
    runner.forward([Rows(sequence, num_cached, 0)])
    return sequence


# Against torch


def parts_of(num_rows: int) -> Packing:
    """Two sequences' rows, behind which rows are spare, over pages in no order."""
    layout = Layout((1, num_rows - 1), 3, FEW_ROWS - num_rows)
    parts = unpack(torch.zeros(layout.num_words, dtype=torch.int64), layout, torch.int32)
    parts.token_ids.copy_(torch.arange(FEW_ROWS) * 7 % VOCAB)
    parts.positions[:num_rows] = torch.tensor([20, *range(37 - num_rows, 36)])
    parts.cu_seq_q.copy_(torch.tensor([0, 1, num_rows]))
    parts.seqused_k.copy_(torch.tensor([21, 36]))
    parts.block_table.copy_(torch.tensor([[4, 0, 6], [3, 5, 1]]))
    owner = torch.tensor([0] + [1] * (num_rows - 1))
    pages = parts.block_table[owner, parts.positions[:num_rows] // 16].long()
    parts.slots.fill_(6 * 16)
    parts.slots[:num_rows] = pages * 16 + parts.positions[:num_rows] % 16
    return parts


def driven(kernels: Kernels, weights: FewRows, parts: Packing) -> list[torch.Tensor]:
    """Run each kernel once; return pages and logits, which tell of all that is between them."""
    rows, form, (attention, mlp, *_), gains = parts.cu_seq_q[-1:], weights._form, weights._blocks, weights._gains
    generator = torch.Generator().manual_seed(1)
    keys, values = (torch.randn(7, 16, form.kv_heads, form.head_dim, generator=generator) for _ in range(2))
    logits = torch.zeros(2, FEW_ROWS, VOCAB)
    kernels.embed(parts.token_ids, form.embedding.weight, gains[0], rows)
    kernels.rotate(attention, parts, keys, values, rows)
    kernels.attend(parts, keys, values)
    kernels.add_attended(attention.out, gains[1], rows)
    kernels.head(form.head.weight, rows, logits[0])
    kernels.gate(mlp, rows)
    kernels.add_gated(mlp.down, gains[2], rows)
    kernels.head(form.head.weight, rows, logits[1])
    # The last page is the scratch page.
    return [keys[:6], values[:6], logits[:, : int(rows)]]


@pytest.fixture(scope="module")
def odd_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    others = {"qwen3": {**ODD, "head_dim": 8}, "llama": ODD}
    return {
        name: write_model(tmp_path_factory.mktemp(name), name, vocab_size=VOCAB, layers=1, **config)
        for name, config in others.items()
    }


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
@pytest.mark.parametrize("num_rows", [1, 3, 16])
@torch.inference_mode()
def test_each_kernel_computes_what_torch_does(model_type: str, num_rows: int, odd_folders: dict[str, Path]) -> None:
    loaded = load_float32(odd_folders[model_type])
    weights = FewRows(loaded, lambda inputs: inputs.token_ids, TorchFewRowKernels)
    arguments = weights._form, loaded.context_length, torch.float32
    ours = driven(FewRowKernels(*arguments, tiles=SEVERAL_PROGRAMS), weights, parts_of(num_rows))
    expected = driven(TorchFewRowKernels(*arguments), weights, parts_of(num_rows))
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_a_whole_forward_gives_the_models_own_logits(tmp_path: Path) -> None:
    folder = write_llama(tmp_path, vocab_size=VOCAB, gain=1.0, **ODD)
    runner = runner_with_kernels(folder, SEVERAL_PROGRAMS)
    texts = [ids_of(150), ids_of(25, 7), ids_of(70, 11)]
    for widths in ((1,), (2, 5), (4, 1, 11)):
        batch = [Rows(opened(runner, ids, len(ids) - n), n, n) for ids, n in zip(texts, widths, strict=False)]
        for ids, n, logits in zip(texts, widths, runner.forward(batch), strict=False):
            expected = eager_logits(folder, [ids])[0, -n:]
            assert (logits - expected).norm() <= 1e-6 * expected.norm()


# Bits


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("target"), vocab_size=VOCAB)


@torch.inference_mode()
def test_a_rows_bits_depend_on_no_neighbour(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    multiply_row_by_row(monkeypatch)
    runner, ids = runner_with_kernels(folder, SEVERAL_PROGRAMS), ids_of(100)
    start, found = len(ids) - 16, []
    for widths in ((16,), (1, 2, 5, 1, 7)):
        sequence = opened(runner, ids, start)
        found.append(torch.cat([runner.forward([Rows(sequence, n, n)])[0] for n in widths]))
    sequence, others = opened(runner, ids, start), [opened(runner, ids_of(n, 7), n - 4) for n in (23, 70)]
    batches = [[Rows(others[0], 4, 4), Rows(sequence, 8, 8)], [Rows(sequence, 8, 8), Rows(others[1], 4, 0)]]
    found.append(torch.cat([runner.forward(batch)[place] for batch, place in zip(batches, (1, 0), strict=True)]))
    for other in found[1:]:
        assert other.equal(found[0])


def confidences(generation: Generation) -> dict[int, float]:
    """Return the probability of each token that was the target's own, by its place: it tells of all its row's bits."""
    found, place = {}, 0
    for verdict in itertools.chain.from_iterable(generation.verdicts):
        place += verdict.num_emitted
        if verdict.token_id is not None:
            found[place] = verdict.confidence
    return found


def test_texts_are_equal_to_the_bit_whatever_is_drafted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One session is greedy, one has noise; drafts are often, not always, right. Together they have 8 rows at once."""
    multiply_row_by_row(monkeypatch)
    draft = make_runner(write_llama(tmp_path, vocab_size=VOCAB, seed=1, mix=Mix(0, 0.995)))
    target = runner_with_kernels(folder)
    greedy, noisy = (make_spec(max_tokens=8, sampling=SamplingParams(temperature=one)) for one in (0.0, 1.0))

    async def run(gamma: int, *specs: SessionSpec) -> list[Generation]:
        async with served(target, draft, Limits()) as pair:
            opening = asyncio.Barrier(len(specs))
            return await asyncio.gather(*(decode_on(pair, spec, Plan(gamma=gamma), opening) for spec in specs))

    runs = [[*asyncio.run(run(gamma, greedy)), *asyncio.run(run(gamma, noisy))] for gamma in (0, 1, 8)]
    runs.append(asyncio.run(run(3, greedy, noisy)))
    for alone, *drafted in zip(*runs, strict=True):
        assert all(one.token_ids == alone.token_ids for one in drafted)
        assert len(confidences(alone)) == 8
        assert all(confidences(one).items() <= confidences(alone).items() for one in drafted)
        assert sum(one.num_accepted for one in drafted) > 5


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("capability", "models"), [(80, ("1.7B",)), (90, ("1.7B", "grouped"))])
def test_what_the_kernels_are_compiled_to(capability: int, models: tuple[str, ...], tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    # What an earlier run has compiled must not stand for this one.
    environ |= {"TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.specgate.runtime.cuda.decoder.compile_few_rows", str(capability), *models]
    done = subprocess.run(command, cwd=ROOT, env=environ, check=False, timeout=280, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    compiled = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(compiled) == len(models) * len(PINNED)
    assert {one["stack"] for one in compiled} == {0}
    # What cards of 8.6, 8.9 and 12.0 have.
    assert max(one["shared"] for one in compiled if one["model"] == "1.7B") <= 99 << 10
    assert all(one["matrix"] for one in compiled if one["kernel"] != "embed")
    if capability == 90:
        assert {one["kernel"]: Usage(**{name: one[name] for name in Usage._fields}) for one in compiled[:7]} == PINNED
