"""Drafts in one call: the same drafts and texts as by forwards in a row, whatever is in them and whatever fails."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from drafter_svc.drafter import DraftSession
from specgate.errors import NonFiniteLogits
from specgate.runtime.cuda.decoder import drafting as card
from specgate.runtime.cuda.decoder.drafting import CudaDrafter
from specgate.runtime.cuda.decoder.shape import MOST_SEQUENCES, MOST_STEPS
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.kv_pages import KVSequence
from specgate.runtime.sampling_step import SamplingStep
from specgate.runtime.scheduler import Limits, Rows
from specgate.types import DraftRequest, SamplingParams
from tests.support.drafting import GAMMA, Drafting, by_torch, drafting, stacked
from tests.support.engines import decode_on, served
from tests.support.models import Mix, make_runner, write_llama
from tests.support.sessions import VOCAB_SIZE, Ids, Plan, make_spec

LAWS = {"greedy": SamplingParams(temperature=0), "noise": SamplingParams(temperature=0.8)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("draft"), VOCAB_SIZE, seed=1, mix=Mix(seed=2, share=0.97), head_dim=16)


@pytest.fixture(scope="module")
def plain(folder: Path) -> ModelRunner:
    """A runner of the same model without a drafter."""
    return stacked(folder)[0]


@pytest.mark.parametrize("law", LAWS)
async def test_the_same_drafts_by_one_call_each(folder: Path, plain: ModelRunner, law: str) -> None:
    async with drafting(plain) as one:
        expected = await one.text(sampling=LAWS[law])
    runner, decoder = by_torch(folder)
    async with drafting(runner) as one:
        assert await one.text(sampling=LAWS[law]) == expected
    assert decoder.sizes == [(GAMMA, 1)] * 4
    assert len({proposal.draft_token_ids for proposal in expected}) == 4


async def test_a_draft_is_one_copy_and_one_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner, decoder = by_torch(folder)
    assert isinstance(runner.drafter, CudaDrafter)
    host, words = torch.Tensor.tolist, runner.drafter._words.data_ptr()  # what is copied to, no caller sees
    copy = torch.Tensor.copy_
    reads: list[int] = []
    copies: list[bool] = []

    def read(tensor: torch.Tensor) -> Any:
        reads.append(tensor.numel())
        return host(tensor)

    def copied(tensor: torch.Tensor, *source: Any, **options: Any) -> torch.Tensor:
        if tensor.data_ptr() == words:
            copies.append(options["non_blocking"])
        return copy(tensor, *source, **options)

    monkeypatch.setattr(torch.Tensor, "tolist", read)
    monkeypatch.setattr(torch.Tensor, "copy_", copied)
    monkeypatch.setattr(runner, "forward", None)
    spec = make_spec(max_tokens=60)
    session = DraftSession(spec, runner.pool, VOCAB_SIZE, runner.loaded.context_length)
    async with drafting(runner) as one:
        await one.draft(session, 0)
        session.free()
    assert (len(reads), copies, decoder.sizes) == (1, [True], [(GAMMA, 1)])


async def test_pages_are_counted_as_after_forwards(folder: Path, plain: ModelRunner) -> None:
    counts = []
    for runner in (plain, by_torch(folder)[0]):
        async with drafting(runner) as one:
            session = await one.session()
            await one.draft(session, 0)
            await one.draft(session, 1, tuple(range(9)))
            sequence = session.sequence
            counts.append((sequence.num_cached, sequence.num_computed, sequence.remembered, len(sequence.block_table)))
            session.free()
    assert counts[0] == counts[1]


async def together(one: Drafting, sessions: list[DraftSession]) -> list[Ids]:
    """Return the first proposals of sessions, queued by one task, so that none is run before all are there."""
    request = DraftRequest(0, sessions[0].num_committed, (), GAMMA, 0.0)
    jobs: list[Any] = []
    queued = one.engine.post(lambda: jobs.extend(one.engine.submit(each.draft(request)) for each in sessions))
    await asyncio.wrap_future(queued)
    return [(await asyncio.wrap_future(job)).draft_token_ids for job in jobs]


@pytest.mark.parametrize(("num_sessions", "sizes"), [(3, [(GAMMA, 3)]), (MOST_SEQUENCES + 1, [])])
async def test_sessions_that_ask_together_are_one_call_if_it_takes_so_many(
    folder: Path, plain: ModelRunner, num_sessions: int, sizes: list[tuple[int, int]]
) -> None:
    runner, decoder = by_torch(folder)
    found = []
    for one_runner in (plain, runner):
        async with drafting(one_runner) as one:
            sessions = [await one.session(seed=seed, sampling=LAWS["noise"]) for seed in range(num_sessions)]
            found.append(await together(one, sessions))
            for each in sessions:
                each.free()
    assert found[0] == found[1]
    assert decoder.sizes == sizes


@pytest.mark.parametrize(
    "fields",
    [
        {"sampling": SamplingParams(temperature=0.8, top_k=9)},
        {"sampling": SamplingParams(temperature=0.8, top_p=0.9)},
        {"sampling": SamplingParams(temperature=0.8, min_p=0.1)},
        {"sampling": SamplingParams(temperature=0, logit_bias={3: 5.0})},
        {"stop_token_ids": frozenset({1}), "min_tokens": 9},
    ],
)
async def test_other_laws_are_left_to_forwards_in_a_row(folder: Path, fields: dict[str, Any]) -> None:
    runner, decoder = by_torch(folder)
    async with drafting(runner) as one:
        assert (await one.once(**fields)).draft_token_ids
    assert decoder.sizes == []


async def test_a_long_draft_is_several_calls(folder: Path, plain: ModelRunner) -> None:
    runner, decoder = by_torch(folder)
    found = []
    for one_runner in (plain, runner):
        async with drafting(one_runner) as one:
            found.append((await one.once(gamma=MOST_STEPS + 3)).draft_token_ids)
    assert found[0] == found[1]
    assert decoder.sizes == [(MOST_STEPS, 1), (3, 1)]


def test_nothing_is_drafted_past_the_context(folder: Path) -> None:
    runner, _ = by_torch(folder)
    assert runner.drafter
    rows, choosing = Rows(KVSequence([0] * 510), 1, 1), SamplingStep(LAWS["greedy"], 0, 510, VOCAB_SIZE)
    assert [runner.drafter.fits([rows], [choosing], num_steps) for num_steps in (3, 4)] == [True, False]


# Run-ahead


async def guess(one: Drafting, session: DraftSession, num_rows: int) -> None:
    """Have the likeliest outcomes of the last proposal prepared."""
    jobs: list[Any] = []

    def submit(task: Any) -> Any:
        jobs.append(one.engine.submit(task))
        return jobs[-1]

    session.ahead.start(num_rows, submit)
    for job in jobs:
        await asyncio.wrap_future(job)


@pytest.mark.parametrize("law", LAWS)
async def test_guesses_are_drafted_in_one_call(folder: Path, plain: ModelRunner, law: str) -> None:
    async with drafting(plain) as one:
        first = (await one.once(sampling=LAWS[law])).draft_token_ids
    runner, decoder = by_torch(folder)
    async with drafting(runner) as one:
        session = await one.session(sampling=LAWS[law])
        await one.draft(session, 0)
        await guess(one, session, 4)
        (branches,) = session.guesses._branch_sets  # what nobody sees before it is asked for
        assert decoder.sizes == [(GAMMA, 1), (GAMMA, len(branches.branches))]
        outcome = next(iter(branches.branches))
        hit = await one.draft(session, 1, outcome)
        assert hit.from_run_ahead
        session.free()
    async with drafting(plain) as one:
        session = await one.session(sampling=LAWS[law])
        assert (await one.draft(session, 0)).draft_token_ids == first
        assert (await one.draft(session, 1, outcome)).draft_token_ids == hit.draft_token_ids
        session.free()


@pytest.mark.parametrize("law", LAWS)
async def test_the_text_is_the_same(folder: Path, plain: ModelRunner, law: str, tmp_path: Path) -> None:
    target = make_runner(write_llama(tmp_path, VOCAB_SIZE, seed=2, head_dim=16))
    runner, decoder = by_torch(folder)
    spec = make_spec(sampling=LAWS[law], max_tokens=40)
    found = []
    for draft in (plain, runner):
        async with served(target, draft, Limits(), chains=True) as pair:
            found.append(await decode_on(pair, spec, Plan(gamma=3, ahead=3), asyncio.Barrier(1)))
    assert found[0].token_ids == found[1].token_ids
    proposals = [[one.draft_token_ids for one in generation.proposals] for generation in found]
    assert proposals[0] == proposals[1]
    assert found[1].num_accepted > 5
    assert any(proposal.from_run_ahead for proposal in found[1].proposals)
    assert decoder.sizes


# Faults


async def test_a_fault_costs_no_text_and_is_told_once(
    folder: Path, plain: ModelRunner, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **options: Any) -> None:
        raise RuntimeError("refused")

    async with drafting(plain) as one:
        expected = await one.text()
    runner, _ = by_torch(folder)
    monkeypatch.setattr(card, "pack", fail)
    async with drafting(runner) as one:
        assert await one.text() == expected
    assert runner.drafter is None
    (told,) = [record.message for record in caplog.records if "failed" in record.message]
    assert told.startswith("a draft in one call, which is not tried again, failed: ")


async def test_a_device_that_is_lost_is_lost_for_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any, **options: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    runner, _ = by_torch(folder)
    async with drafting(runner) as one:
        session = await one.session()
        monkeypatch.setattr(card, "pack", lost)
        with pytest.raises(Exception, match="the engine stopped"):
            await one.draft(session, 0)


async def test_broken_logits_end_that_draft(folder: Path) -> None:
    runner, _ = by_torch(folder)
    assert isinstance(runner.drafter, CudaDrafter)
    own = runner.drafter._weights  # as of a card whose memory is bad
    async with drafting(runner) as one:
        session = await one.session()
        own.last_norm[0] = torch.nan
        with pytest.raises(NonFiniteLogits):
            await one.draft(session, 0)
        session.free()
