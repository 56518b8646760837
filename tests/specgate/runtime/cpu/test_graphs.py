"""Recorded forwards give the same bits as those they stand for, and are not used where they could not."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from specgate.errors import ResourceExhausted
from specgate.runtime.attention.interface import Inputs
from specgate.runtime.attention.paged_sdpa import PagedSdpaBatch
from specgate.runtime.cpu import graphs as cpu_graphs
from specgate.runtime.engine.graph_check import add_cpu_graphs
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.scheduler import Rows
from tests.support.architecture_runs import write_case
from tests.support.architectures import CASES, Case
from tests.support.models import make_runner, quiet, write_llama

SERVED = [case for case in CASES if not case.refused]
SHAPES = [(1,), (2,), (3, 1), (1, 1, 1, 1), (4, 2, 5), (8,), (9, 8), (30, 20), (40, 30)]
HEAD = 37
NOT_RECORDED = {"GPT-2", "OPT", "OPT-350m"}
"""They ask whether a tensor of positions is there by its numbers."""


@pytest.fixture
def runner(tmp_path: Path) -> ModelRunner:
    return make_runner(write_llama(tmp_path), packs=False)


@contextmanager
def batch_of(runner: ModelRunner, widths: tuple[int, ...], seed: int = 0) -> Iterator[list[Rows]]:
    """Sequences of different lengths, with so many rows that are not cached yet."""
    generator = torch.Generator().manual_seed(seed)
    sequences = []
    for index, width in enumerate(widths):
        length = HEAD + 3 * index + width
        ids = torch.randint(runner.vocab_size, (length,), generator=generator).tolist()
        sequences.append(runner.pool.open(ids, length))
        assert runner.pool.extend(sequences[-1], length)
        runner.forward([Rows(sequences[-1], length - width, 0)])
    yield [Rows(sequence, width, width) for sequence, width in zip(sequences, widths, strict=True)]
    for sequence in sequences:
        runner.pool.free(sequence)


def both_ways(runner: ModelRunner, widths: tuple[int, ...], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    with batch_of(runner, widths, seed) as batch:
        starts = [rows.sequence.num_cached for rows in batch]
        plain = runner.forward(batch, use_graphs=False)
        for rows, start in zip(batch, starts, strict=True):
            rows.sequence.num_cached = start
        return torch.cat(plain), torch.cat(runner.forward(batch))


@pytest.mark.parametrize("case", SERVED, ids=lambda case: case.name)
def test_the_same_bits(case: Case, tmp_path: Path) -> None:
    """Whatever is recorded holds for other tokens, positions and batches than those it was recorded from."""
    runner = make_runner(write_case(case, tmp_path), packs=False)
    is_recorded = add_cpu_graphs(runner, quiet)
    assert is_recorded == (case.name not in NOT_RECORDED)
    for seed, widths in enumerate(SHAPES):
        plain, replayed = both_ways(runner, widths, seed)
        assert torch.equal(plain, replayed), widths


def test_few_rows_whose_logits_are_all_wanted_are_replayed(runner: ModelRunner, monkeypatch) -> None:
    assert add_cpu_graphs(runner, quiet)
    calls: list[int] = []
    call = runner.cpu_graphs._call

    def counted(inputs: Inputs) -> torch.Tensor:
        calls.append(len(inputs.token_ids))
        return call(inputs)

    monkeypatch.setattr(runner, "call", counted)
    for widths in SHAPES:
        with batch_of(runner, widths) as batch:
            calls.clear()
            runner.forward(batch)
            assert bool(calls) == (sum(widths) > cpu_graphs.MOST_ROWS)
            assert runner.last_num_calls > 0
    with batch_of(runner, (3,)) as [rows]:
        calls.clear()
        runner.forward([rows._replace(num_logits=1)])
        assert calls == [3]


class Peeking(nn.Module):
    """A layer that does another thing where a number is large."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(hidden)
        return -out if out.sum() > 1e6 else out


def test_a_model_that_looks_at_its_numbers_is_not_recorded(
    runner: ModelRunner, caplog: pytest.LogCaptureFixture
) -> None:
    layer = runner.loaded.model.model.layers[0]
    layer.mlp = Peeking(layer.mlp)
    with caplog.at_level("INFO"):
        assert not add_cpu_graphs(runner, quiet)
    assert "looks at its numbers" in caplog.text
    assert not runner.cpu_graphs
    plain, served = both_ways(runner, (3,), 0)
    assert torch.equal(plain, served)


class Random(nn.Module):
    """A layer whose every call gives other numbers."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + torch.rand_like(hidden)


def test_a_replay_that_differs_is_not_used(runner: ModelRunner) -> None:
    runner.loaded.model.model.layers[0].mlp = Random()
    assert not add_cpu_graphs(runner, quiet)
    assert not runner.cpu_graphs


def test_two_models_in_two_threads(tmp_path: Path) -> None:
    """As draft and target are where both run in one process: each asks its own pages."""
    runners = [make_runner(write_llama(tmp_path / str(seed), seed=seed), packs=False) for seed in (1, 2)]
    assert all(add_cpu_graphs(one, quiet) for one in runners)
    same: list[bool] = []

    def run(one: ModelRunner) -> None:
        for seed in range(30):
            same.append(torch.equal(*both_ways(one, SHAPES[seed % len(SHAPES)], seed)))

    threads = [threading.Thread(target=run, args=(one,)) for one in runners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same == [True] * 60


def test_what_attention_raises_keeps_its_class(runner: ModelRunner, monkeypatch) -> None:
    assert add_cpu_graphs(runner, quiet)

    def full(*_: object, **__: object) -> None:
        raise ResourceExhausted("no memory")

    with batch_of(runner, (2,)) as batch:
        monkeypatch.setattr(PagedSdpaBatch, "attend", full)
        with pytest.raises(ResourceExhausted, match="no memory"):
            runner.forward(batch)
        monkeypatch.undo()
    assert torch.equal(*both_ways(runner, (2,), 0))


def test_a_single_page_is_enough(tmp_path: Path) -> None:
    assert add_cpu_graphs(make_runner(write_llama(tmp_path), kv_tokens=128, page_size=128, packs=False), quiet)
