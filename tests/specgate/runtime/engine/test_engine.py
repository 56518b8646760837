"""The engine: tasks batch by themselves, and what goes wrong with one of them stays its own."""

import asyncio
import math
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specgate.errors import EngineFailed, InternalError, InvalidArgument, NonFiniteLogits, ResourceExhausted
from specgate.runtime.engine import engine as engine_module
from specgate.runtime.engine.engine import Engine
from specgate.runtime.engine.jobs import Task
from specgate.runtime.kv_pages import KVSequence, PagePool
from specgate.runtime.sampling_step import ForwardResult, Prefix, SamplingStep
from specgate.runtime.scheduler import ForwardRequest, Limits, Rows, forward, logits_of
from specgate.types import SamplingParams
from tests.support.models import eager_logits, make_runner, write_llama
from tests.support.patience import PATIENCE_S

POOL = PagePool(num_pages=4096, page_size=16)
"""For all tests here: they look at tasks, not at pages."""
Counting = Task[list[float]]


class Recorder:
    """A runner that answers each row with its sequence's first token id, and remembers every batch.

    While ``paced`` a forward waits inside for the test: what comes meanwhile is one batch.
    """

    chooser = drafter = None

    def __init__(self) -> None:
        self.pool = POOL
        self.batches: list[list[int]] = []
        self.threads: set[str] = set()
        self.failures: dict[int, Exception] = {}
        self.paced = False
        self._entered = threading.Semaphore(0)
        self._permits = threading.Semaphore(0)

    async def in_forward(self) -> None:
        """Return when the next forward has begun."""
        assert await asyncio.to_thread(self._entered.acquire, timeout=PATIENCE_S)

    def step(self) -> None:
        """Let the forward that waits go on."""
        self._permits.release()

    def run_free(self) -> None:
        self.paced = False
        self._permits.release()

    def forward(self, batch: list[Rows]) -> list[torch.Tensor]:
        ids = [rows.sequence.token_ids[0] for rows in batch]
        self.batches.append(ids)
        self.threads.add(threading.current_thread().name)
        if self.paced:
            self._entered.release()
            assert self._permits.acquire(timeout=PATIENCE_S)
        for token_id in ids:
            if token_id in self.failures:
                raise self.failures[token_id]
        for rows in batch:
            rows.sequence.num_cached += rows.num_rows
        return [torch.full((rows.num_logits, 1), float(rows.sequence.token_ids[0])) for rows in batch]


def opened(name: int, num_tokens: int = 1) -> KVSequence:
    return POOL.open([name] * num_tokens, 64, salt=str(name))


def counting(name: int, steps: int = 1, num_rows: int = 1) -> Counting:
    """Ask for logits ``steps`` times, and return them."""
    sequence, seen = opened(name, num_rows), []
    try:
        for _ in range(steps):
            answer = yield ForwardRequest(sequence, 1, len(sequence))
            seen.append(answer.logits.item())
            sequence.append([name])
        return seen
    finally:
        POOL.free(sequence)


@asynccontextmanager
async def running(runner: Any, **options: Any) -> AsyncIterator[Engine]:
    engine = Engine(runner, **options)
    engine.start()
    try:
        yield engine
    finally:
        if isinstance(runner, Recorder):
            runner.run_free()
        engine.stop()


async def submit(engine: Engine, *tasks: Task[Any]) -> list[asyncio.Task[Any]]:
    """Start tasks and return when all of them are in the engine's inbox."""
    started = [asyncio.create_task(engine.run(task)) for task in tasks]
    await asyncio.sleep(0)
    return started


async def held(recorder: Recorder, engine: Engine, *tasks: Task[Any]) -> list[asyncio.Task[Any]]:
    """Start tasks, the first of which is in a forward that does not return yet, the rest waiting."""
    recorder.paced = True
    first = await submit(engine, tasks[0])
    await recorder.in_forward()
    return first + await submit(engine, *tasks[1:])


async def test_a_task_gets_its_logits_and_returns_its_result() -> None:
    recorder = Recorder()
    async with running(recorder) as engine:
        assert await engine.run(counting(7, steps=3)) == [7.0, 7.0, 7.0]
    assert recorder.batches == [[7], [7], [7]]
    assert recorder.threads == {"engine"}


async def test_tasks_that_are_ready_share_a_forward_in_order() -> None:
    recorder = Recorder()
    async with running(recorder) as engine:
        tasks = await held(recorder, engine, *(counting(name, steps=3) for name in range(1, 9)))
        recorder.run_free()
        assert await asyncio.gather(*tasks) == [[float(name)] * 3 for name in range(1, 9)]
    others = [2, 3, 4, 5, 6, 7, 8]
    assert recorder.batches == [[1], [1, *others], [1, *others], others]


async def test_an_error_in_a_task_is_its_own(caplog: pytest.LogCaptureFixture) -> None:
    def refusing(error: Exception) -> Counting:
        yield ForwardRequest(opened(9), 1, 1)
        raise error

    recorder = Recorder()
    async with running(recorder) as engine:
        ours, theirs = refusing(InvalidArgument("gamma", "is odd")), refusing(ZeroDivisionError("secret"))
        tasks = await held(recorder, engine, counting(1), counting(2, steps=3), ours, theirs, counting(3))
        recorder.run_free()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert await engine.run(counting(4)) == [4.0]
    assert [results[i] for i in (0, 1, 4)] == [[1.0], [2.0, 2.0, 2.0], [3.0]]
    assert isinstance(results[2], InvalidArgument)
    assert isinstance(results[3], InternalError)
    assert str(results[3]) == "ZeroDivisionError"  # the rest is for the log
    assert "secret" in caplog.text


@pytest.mark.parametrize(
    ("failure", "expected", "message"),
    [
        (NonFiniteLogits("NaN"), NonFiniteLogits, "NaN"),
        (ValueError("secret"), InternalError, "ValueError in a forward pass"),
        (MemoryError(), ResourceExhausted, "out of memory in a forward pass"),
        (torch.OutOfMemoryError("CUDA error: out of memory"), ResourceExhausted, "out of memory in a forward pass"),
    ],
)
async def test_a_forward_that_fails_fails_the_culprit_alone(
    failure: Exception, expected: type[Exception], message: str
) -> None:
    recorder = Recorder()
    recorder.failures[3] = failure
    async with running(recorder) as engine:
        tasks = await held(recorder, engine, *(counting(name, steps=2) for name in (1, 2, 3, 4)))
        recorder.run_free()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert engine.heartbeat_age_s < math.inf
    assert [results[i] for i in (0, 1, 3)] == [[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]]
    assert type(results[2]) is expected
    assert str(results[2]) == message
    # The batch that failed, each of its tasks once more alone, and who is left.
    assert recorder.batches == [[1], [1, 2, 3, 4], [1], [2], [3], [4], [2, 4]]


async def test_cancelling_closes_the_task_and_runs_no_more_of_it() -> None:
    closed = threading.Event()

    def watched() -> Counting:
        try:
            return (yield from counting(2, steps=100))
        finally:
            closed.set()

    recorder = Recorder()
    async with running(recorder) as engine:
        one, two, other = await held(recorder, engine, counting(1, steps=9), watched(), counting(3, steps=3))
        recorder.step()
        await recorder.in_forward()
        for task in (one, two):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not closed.is_set()  # its rows are in the forward that runs
        recorder.run_free()
        assert await other == [3.0, 3.0, 3.0]
        assert closed.is_set()
    assert recorder.batches == [[1], [1, 2, 3], [3], [3]]


async def test_posted_functions_run_on_the_thread_after_the_forward_that_runs() -> None:
    recorder = Recorder()
    said: list[str] = []
    done = threading.Event()

    def say() -> None:
        said.append(threading.current_thread().name)
        done.set()

    async with running(recorder) as engine:
        (task,) = await held(recorder, engine, counting(1))
        engine.post(say)
        assert said == []
        recorder.run_free()
        await task
        assert await asyncio.to_thread(done.wait, PATIENCE_S)
    assert said == ["engine"]


LOST = RuntimeError("CUDA error: device-side assert triggered")


class Worse(Recorder):
    """Loses its device when a batch that failed is run again, one by one."""

    def forward(self, batch: list[Rows]) -> list[torch.Tensor]:
        if len(self.batches) == 2:
            self.failures = {2: LOST}
        return super().forward(batch)


@pytest.mark.parametrize(
    ("kind", "failures"),
    [(Recorder, {2: LOST}), (Recorder, {1: LOST}), (Worse, {2: NonFiniteLogits("NaN")})],
    ids=["in a batch", "with others in the inbox", "in the retry"],
)
async def test_a_lost_device_ends_the_thread_and_every_task(
    kind: type[Recorder], failures: dict[int, Exception], caplog: pytest.LogCaptureFixture
) -> None:
    failed = threading.Event()
    recorder = kind()
    recorder.failures = failures
    async with running(recorder, on_failure=failed.set) as engine:
        tasks = await held(recorder, engine, counting(1, steps=9), counting(2), counting(3), counting(4, steps=9))
        recorder.run_free()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [EngineFailed] * 4
        assert failed.is_set()
        await asyncio.to_thread(engine._thread.join)
        assert engine.heartbeat_age_s == math.inf
        with pytest.raises(EngineFailed, match="not running"):
            await engine.run(counting(5))
    assert "the engine thread died" in caplog.text


async def test_stopping_fails_what_is_left_and_closes_it() -> None:
    closed = threading.Event()

    def endless() -> Counting:
        try:
            while True:
                yield ForwardRequest(opened(2), 1, 1)
        finally:
            closed.set()

    recorder = Recorder()
    failed = threading.Event()
    async with running(recorder, on_failure=failed.set) as engine:
        tasks = await held(recorder, engine, endless(), endless())
        recorder.run_free()
        await asyncio.to_thread(engine.stop)
        for task in tasks:
            with pytest.raises(EngineFailed):
                await task
        assert closed.is_set()
        assert engine.heartbeat_age_s == math.inf
        with pytest.raises(EngineFailed):
            await engine.run(counting(1))
        engine.stop()
    assert not failed.is_set()  # asked for, not suffered


async def test_a_task_that_comes_while_the_thread_ends_is_refused_not_lost() -> None:
    """The thread has emptied its inbox for the last time and is, for a moment more, alive."""
    engine = Engine(Recorder())
    engine.start()
    engine.stop()
    engine._thread = SimpleNamespace(is_alive=lambda: True, join=lambda: None)  # type: ignore[assignment]
    with pytest.raises(EngineFailed):
        await engine.run(counting(1))


async def test_the_heartbeat_stands_still_in_a_long_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    recorder = Recorder()
    async with running(recorder) as engine:
        (task,) = await held(recorder, engine, counting(1))
        now[0] += 60.0
        assert engine.heartbeat_age_s == 60.0
        recorder.run_free()
        await task
        await engine.run(counting(2))
        assert engine.heartbeat_age_s == 0.0


async def stalled(engine: Engine, pool: PagePool) -> tuple[KVSequence, asyncio.Task[Any]]:
    """Return who holds all pages between two of its rounds, and the task of one that came later and needs some."""
    old, young = pool.open([1] * 16, 16), pool.open([2] * 16, 16)
    await engine.run(logits_of(old, 1))
    return old, asyncio.create_task(engine.run(logits_of(young, 1)))


async def test_who_waits_for_pages_burns_no_time_and_is_woken_when_they_are_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_module, "_STALL_S", PATIENCE_S)
    recorder = Recorder()
    recorder.pool = PagePool(num_pages=1, page_size=16)
    async with running(recorder) as engine:
        old, task = await stalled(engine, recorder.pool)
        # A loop that does not wait would be out of patience long before.
        assert not (await asyncio.wait((task,), timeout=0.1))[0]
        await asyncio.wrap_future(engine.post(lambda: recorder.pool.free(old)))
        assert (await task).item() == 2.0


async def test_a_client_that_is_silent_does_not_hold_pages_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_STALL_S", 0.001)
    recorder = Recorder()
    recorder.pool = PagePool(num_pages=1, page_size=16)
    async with running(recorder) as engine:
        old, task = await stalled(engine, recorder.pool)
        assert (await task).item() == 2.0
        assert (old.block_table, old.num_cached) == ([], 0)


async def test_a_sequence_that_is_closed_under_its_task_takes_no_pages() -> None:
    """They would belong to nobody for ever."""
    recorder = Recorder()
    recorder.pool = PagePool(num_pages=4, page_size=16)
    sequence = recorder.pool.open([5], 16)
    async with running(recorder) as engine:
        tasks = await held(recorder, engine, logits_of(recorder.pool.open([1], 16), 1), logits_of(sequence, 1))
        freed = engine.post(lambda: recorder.pool.free(sequence))
        recorder.run_free()
        with pytest.raises(InternalError, match="the sequence was closed"):
            await tasks[1]
        await asyncio.wrap_future(freed)
        await tasks[0]
    assert recorder.batches == [[1]]
    recorder.pool.check_integrity()


def poisoned_model(folder: Path) -> Any:
    runner = make_runner(write_llama(folder, vocab_size=64))
    runner.loaded.model.get_input_embeddings().weight.data[13] = math.nan
    return runner


def greedy(prefix: Prefix | None = None) -> SamplingStep:
    return SamplingStep(SamplingParams(temperature=0.0), 1, 0, 64, prefix)


async def test_choices_are_made_of_the_logits_behind_the_last_token(tmp_path: Path) -> None:
    """Each task gets its own, also one whose prompt takes several forwards."""
    runner = make_runner(write_llama(tmp_path, vocab_size=64))
    prompts = [[1, 2, 3], [i % 60 for i in range(50)], [6, 7], [9]]
    sequences = [runner.pool.open(ids, 64) for ids in prompts]
    limits = Limits(prefill_chunk=20, lone_chunk=20)
    async with running(runner, limits=limits) as engine:
        results = await asyncio.gather(*(engine.run(forward(one, 1, greedy())) for one in sequences))
    for ids, answer in zip(prompts, results, strict=True):
        assert answer.sampled.token_ids == [int(eager_logits(tmp_path, [ids])[0, -1].argmax())]


async def test_a_choice_that_fails_fails_its_task_alone_and_runs_no_rows_again() -> None:
    """A prefix with an id that does not exist: the rows are cached by then, and would be counted twice."""
    recorder = Recorder()
    wrong = greedy(Prefix([99], []))
    names = (1, 2, 3)
    async with running(recorder) as engine:
        tasks = await held(recorder, engine, counting(9), *(
            forward(opened(name), 1, wrong if name == 2 else greedy()) for name in names
        ))  # fmt: skip
        recorder.run_free()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results[1:]] == [ForwardResult, InternalError, ForwardResult]
    assert [result.logits.item() for result in results[1::2]] == [1.0, 3.0]
    assert recorder.batches == [[9], [1, 2, 3]]


async def test_a_session_with_broken_numbers_fails_alone_in_a_batch(tmp_path: Path) -> None:
    """A real model: its neighbours in the batch get the logits that they would get alone."""
    runner, prompts = poisoned_model(tmp_path), [[1, 2, 3], [4, 13, 5], [6, 7], [13]]
    async with running(runner) as engine:
        tasks = [engine.run(logits_of(runner.pool.open(ids, 8), 1)) for ids in prompts]
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [torch.Tensor, NonFiniteLogits, torch.Tensor, NonFiniteLogits]
    for ids, logits in zip(prompts[::2], results[::2], strict=True):
        assert isinstance(logits, torch.Tensor)
        assert torch.allclose(logits[0], eager_logits(tmp_path, [ids])[0, -1], atol=1e-4)


async def test_what_broken_numbers_were_made_of_is_shared_with_nobody(tmp_path: Path) -> None:
    pool = (runner := poisoned_model(tmp_path)).pool
    ids = [13] * 33
    async with running(runner) as engine:
        with pytest.raises(NonFiniteLogits):
            await engine.run(logits_of(pool.open(ids, len(ids)), 1))
        again = pool.open(ids, len(ids))
        pool.attach(again, len(ids) - 1)
    assert again.num_cached == 0
