"""Drafts whose tokens are read once: the same tokens as one at a time, whoever else comes and whatever fails."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from drafter_svc.drafter import DraftSession
from specgate.errors import NonFiniteLogits
from specgate.runtime.attention.paged_sdpa import PagedSdpaKernel
from specgate.runtime.attention.varlen import VarlenKernel
from specgate.runtime.cuda.graphs import buckets_for
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.engine.self_check import prepare
from specgate.types import Proposal, SamplingParams, Verification
from tests.support.drafting import GAMMA, drafting
from tests.support.grammars import END, letter_grammars, regex
from tests.support.models import load_float32, quiet, write_llama
from tests.support.sessions import VOCAB_SIZE, make_spec
from tests.support.tape import TapeCapturer, one_operation

PLAIN = {"greedy": SamplingParams(temperature=0), "warm": SamplingParams(temperature=0.8, top_k=9)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama"), VOCAB_SIZE)


def runner_of(folder: Path, attention: str = "sdpa") -> ModelRunner:
    loaded = load_float32(folder)
    if attention == "sdpa":
        return prepare(loaded, 4096, 64, quiet, [PagedSdpaKernel()], packs=False)
    runner = prepare(loaded, 4096, 64, quiet, [VarlenKernel(one_operation, loaded.context_length)], packs=False)
    if attention == "graphs":
        runner.capture(buckets_for(4), TapeCapturer(), quiet)
    return runner


@contextmanager
def counted(runner: ModelRunner) -> Iterator[list[int]]:
    """Yield the number of sequences in each forward that is run."""
    with at_each_forward(runner, lambda number, run: run()) as sizes:
        yield sizes


@contextmanager
def at_each_forward(runner: ModelRunner, fault: Callable[[int, Callable[[], Any]], Any]) -> Iterator[list[int]]:
    """Let ``fault`` say what each forward answers, given its number from 1 and what runs it; yield as ``counted``."""
    own, sizes = runner.forward, []

    def forward(batch: Any, **options: Any) -> Any:
        sizes.append(len(batch))
        return fault(len(sizes), partial(own, batch, **options))

    runner.forward = forward  # type: ignore[method-assign]
    try:
        yield sizes
    finally:
        runner.forward = own  # type: ignore[method-assign]


@pytest.mark.parametrize("attention", ["sdpa", "varlen", "graphs"])
@pytest.mark.parametrize("name", PLAIN)
async def test_a_draft_that_is_read_once_is_the_same_draft(folder: Path, attention: str, name: str) -> None:
    runner = runner_of(folder, attention)
    async with drafting(runner, chains=False) as plain:
        expected = await plain.text(sampling=PLAIN[name])
    async with drafting(runner, chains=True) as chained:
        assert await chained.text(sampling=PLAIN[name]) == expected
    assert len({proposal.draft_token_ids for proposal in expected}) == len(expected)


STOP = frozenset(range(8))


async def test_what_may_not_be_chosen_is_in_no_chain(folder: Path, tmp_path: Path) -> None:
    runner, grammars = runner_of(folder), letter_grammars(tmp_path)
    early = {"sampling": PLAIN["warm"], "stop_token_ids": STOP, "min_tokens": 3}
    spec = make_spec(grammar=regex("[ab]+"), stop_token_ids=frozenset({END}))
    found: list[list[Proposal]] = []
    for chains in (False, True):
        async with drafting(runner, chains=chains) as one:
            sessions = [
                *[await one.session(seed=seed, **early) for seed in range(4)],
                DraftSession(spec, runner.pool, VOCAB_SIZE, 64, grammar=grammars.state(spec, VOCAB_SIZE)),
            ]
            # One after the other: who shares a forward with one that cannot be chained is not chained either.
            found.append([await one.draft(session, 0) for session in sessions])
            for session in sessions:
                session.free()
    assert found[0] == found[1]
    *barred, masked = (proposal.draft_token_ids for proposal in found[1])
    assert all(len(ids) >= 3 and not STOP.intersection(ids[:3]) for ids in barred)
    assert any(STOP.intersection(ids) for ids in barred)
    assert set(masked) <= {*range(END + 1)}


async def test_the_host_reads_once_a_proposal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner, own = runner_of(folder), torch.Tensor.tolist
    reads: list[torch.Size] = []

    def read(tensor: torch.Tensor) -> Any:
        reads.append(tensor.shape)
        return own(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", read)
    for chains, num_reads in ((False, GAMMA), (True, 1)):
        async with drafting(runner, chains=chains) as one:
            session = await one.session()
            reads.clear()
            with counted(runner) as forwards:
                await one.draft(session, 0)
            assert (len(reads), len(forwards)) == (num_reads, GAMMA)
            session.free()


async def test_what_lies_behind_a_stop_token_is_dropped(folder: Path) -> None:
    runner = runner_of(folder)
    async with drafting(runner, chains=True) as chained:
        (first, *_) = await chained.text()
        stop = first.draft_token_ids[2]
        session = await chained.session(stop_token_ids=frozenset({stop}))
        ended = await chained.draft(session, 0)
        assert ended.draft_token_ids == first.draft_token_ids[: first.draft_token_ids.index(stop) + 1]
        assert session.last_proposal == list(ended.draft_token_ids)
        # It goes on from there as if nothing had been run behind it.
        after = await chained.draft(session, 1, (*ended.draft_token_ids[:1], 5))
        session.free()
    async with drafting(runner, chains=False) as plain:
        session = await plain.session(stop_token_ids=frozenset({stop}))
        await plain.draft(session, 0)
        assert await plain.draft(session, 1, (*ended.draft_token_ids[:1], 5)) == after
        session.free()


@pytest.mark.parametrize(
    "fields",
    [
        {"verification": Verification.REJECTION, "sampling": SamplingParams(temperature=1)},
        {"sampling": SamplingParams(temperature=0, presence_penalty=1)},
    ],
)
async def test_where_each_token_is_looked_at_they_come_one_at_a_time(folder: Path, fields: dict[str, Any]) -> None:
    runner = runner_of(folder)
    found = []
    for chains in (False, True):
        async with drafting(runner, chains=chains) as one:
            found.append(await one.once(**fields))
    assert found[0] == found[1]


async def test_sessions_that_ask_together_are_run_together(folder: Path) -> None:
    runner = runner_of(folder)
    async with drafting(runner, chains=False) as plain:
        expected = [(await plain.text(seed=seed, sampling=PLAIN["warm"]))[0] for seed in range(3)]
    async with drafting(runner, chains=True) as chained:
        sessions = [await chained.session(seed=seed, sampling=PLAIN["warm"]) for seed in range(3)]
        gammas = (GAMMA, 2, GAMMA)
        with counted(runner) as sizes:
            found = await asyncio.gather(
                *(chained.draft(one, 0, gamma=gamma) for one, gamma in zip(sessions, gammas, strict=True))
            )
        assert sum(sizes) == sum(gammas)
        for one in sessions:
            one.free()
    for proposal, whole, gamma in zip(found, expected, gammas, strict=True):
        assert proposal.draft_token_ids == whole.draft_token_ids[:gamma]


async def test_a_forward_that_fails_in_mid_chain_leaves_the_draft_as_it_would_be(folder: Path) -> None:
    def fails_once(number: int, run: Callable[[], Any]) -> Any:
        if number == 3:
            raise RuntimeError("no memory for this one")
        return run()

    runner = runner_of(folder)
    async with drafting(runner, chains=True) as chained:
        expected = await chained.text()
        session = await chained.session()
        with at_each_forward(runner, fails_once):
            assert await chained.draft(session, 0) == expected[0]
        session.free()


async def test_broken_logits_in_mid_chain_end_that_draft(folder: Path) -> None:
    def breaks(number: int, run: Callable[[], Any]) -> Any:
        return [logits * torch.nan for logits in run()] if number == 2 else run()

    runner = runner_of(folder)
    async with drafting(runner, chains=True) as chained:
        session = await chained.session()
        with at_each_forward(runner, breaks), pytest.raises(NonFiniteLogits):
            await chained.draft(session, 0)
        session.free()


def one_call_runner(folder: Path) -> ModelRunner:
    runner = prepare(load_float32(folder), 4096, 64, quiet)
    if runner.drafter is None:
        pytest.skip("the C library does not serve here")
    return runner


@contextmanager
def at_each_draft(runner: ModelRunner, before: Callable[[], Any] = lambda: None) -> Iterator[list[int]]:
    """Call ``before`` in each draft of one call, as it begins; yield how many forwards each of them was."""
    own, forwards = runner.draft, []

    def draft(*arguments: Any) -> Any:
        before()
        drafted = own(*arguments)
        forwards.append(len(drafted.tables[0]))
        return drafted

    runner.draft = draft  # type: ignore[assignment, method-assign]
    try:
        yield forwards
    finally:
        runner.draft = own  # type: ignore[method-assign]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_a_draft_of_one_call_is_the_same_draft(folder: Path, temperature: float) -> None:
    runner, seeds = one_call_runner(folder), range(3)
    drafter, fields = runner.drafter, {"sampling": SamplingParams(temperature=temperature)}
    async with drafting(runner, chains=False) as one:
        runner.drafter = None
        expected = [await one.text(seed=seed, **fields) for seed in seeds]
        runner.drafter = drafter
        with at_each_draft(runner) as forwards, counted(runner) as others:
            assert await one.text(seed=0, **fields) == expected[0]
        assert forwards == [GAMMA] * 4
        assert len(others) == 1  # the prompt
        assert await asyncio.gather(*(one.text(seed=seed, **fields) for seed in seeds)) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"sampling": SamplingParams(temperature=0.8, top_k=2)},
        {"sampling": SamplingParams(temperature=0.8), "stop_token_ids": frozenset(range(8)), "min_tokens": 3},
        {"sampling": SamplingParams(temperature=0.8), "vocab_size": 9},
    ],
    ids=["top-k", "min_tokens", "vocabulary"],
)
async def test_what_may_not_be_chosen_is_in_no_draft_of_one_call(folder: Path, fields: dict[str, Any]) -> None:
    runner = one_call_runner(folder)
    drafter, found = runner.drafter, []
    for one_call in (drafter, None):
        runner.drafter = one_call
        async with drafting(runner, chains=False) as one:
            found.append([(await one.once(seed=seed, **fields)).draft_token_ids for seed in range(6)])
    assert found[0] == found[1]


async def test_a_draft_of_one_call_ends_early_for_who_comes_and_goes_on_behind_him(folder: Path) -> None:
    runner = one_call_runner(folder)
    async with drafting(runner, chains=False) as one:
        expected = await one.text()
        comes = iter([True])
        with at_each_draft(runner, lambda: next(comes, False) and one.engine.post(lambda: None)) as forwards:
            assert await one.text() == expected
        assert forwards == [1, GAMMA - 1, GAMMA, GAMMA, GAMMA]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_a_draft_of_one_call_ends_with_its_first_unsure_token(folder: Path, temperature: float) -> None:
    runner, fields = one_call_runner(folder), {"sampling": SamplingParams(temperature=temperature)}
    drafter = runner.drafter
    async with drafting(runner, chains=False) as one:
        told = await one.once(stop_below=1e-30, **fields)
        threshold = 1.001 * min(told.draft_confidences)
        length = next(i for i, prob in enumerate(told.draft_confidences, 1) if prob < threshold)
        with at_each_draft(runner) as forwards:
            stopped = await one.once(stop_below=threshold, **fields)
        runner.drafter = None
        plain = await one.once(stop_below=threshold, **fields)
    runner.drafter = drafter
    assert length < GAMMA
    assert forwards == [length]
    assert stopped.draft_token_ids == plain.draft_token_ids == told.draft_token_ids[:length]
    assert stopped.draft_confidences == pytest.approx(plain.draft_confidences, rel=1e-5)
