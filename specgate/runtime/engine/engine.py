"""The one thread that owns the device. Work is generators that yield rows and receive logits and sampled tokens.

The loop asks the scheduler which needs of all generators run, runs one forward, samples for all of them together and
hands each its result. So sessions batch by themselves, and prefills mix with decodes.
"""

import asyncio
import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import torch

from specgate.errors import EngineFailed, InternalError, NonFiniteLogits
from specgate.runtime.batch_sampler import answers, have_one_law
from specgate.runtime.engine.chain import Link, in_one_call, run_chain
from specgate.runtime.engine.isolation import each_its_own
from specgate.runtime.engine.jobs import Job, Task
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.sampling_step import ForwardResult, SamplingStep
from specgate.runtime.scheduler import Limits, Rows, Scheduler

log = logging.getLogger(__name__)
T = TypeVar("T")
_IDLE_BEAT_S = 0.25
_STALL_S = 0.05
"""How long the loop waits for a task where all that is ready waits for pages."""


class Engine:
    """Runs generator tasks on one thread.

    Args:
        runner: the model; only the engine's thread touches it from now on.
        limits: of one forward.
        chains: run several forwards in a row where all tasks of a batch allow it and no other task waits. It pays on a
            device that works while the host goes on; a task that arrives meanwhile waits longer. Forwards of one call
            are run in any case: the call ends early when a task arrives.
        on_failure: called on the engine's thread when it dies; the process is expected to exit.
    """

    def __init__(
        self,
        runner: ModelRunner,
        limits: Limits | None = None,
        *,
        chains: bool = False,
        on_failure: Callable[[], None] | None = None,
    ) -> None:
        self.runner = runner
        self._chains = chains
        self._scheduler = Scheduler(runner.pool, limits or Limits())
        self._on_failure = on_failure
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._ready: deque[Job] = deque()
        self._batch: dict[Job, Rows] = {}
        self._checked = True
        self._beat = time.monotonic()
        self._forward_start_s = 0.0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._stopping = False
        self._ended = False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the forward that runs now; what is left fails with EngineFailed."""
        self._stopping = True
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join()

    @property
    def heartbeat_age_s(self) -> float:
        """Seconds since the loop last came round; infinite where the thread is not alive."""
        return time.monotonic() - self._beat if self._thread.is_alive() else math.inf

    @property
    def forward_age_us(self) -> int:
        """Microseconds since the last forward began: for a task, the one whose logits it was just given."""
        return int((time.monotonic() - self._forward_start_s) * 1e6)

    async def run(self, task: Task[T]) -> T:
        """Run a task to its end and return its result. Cancelling closes the task at its next step.

        Raises:
            SpecgateError: whatever the task raised, or EngineFailed.
        """
        future = self.submit(task)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            # At once, not by a later callback: the caller is about to give the task's pages back.
            future.cancel()
            raise

    def post(self, function: Callable[[], None]) -> Future[None]:
        """Run a plain function on the engine's thread, after the forward that runs now; the future is done after it."""

        def task() -> Task[None]:
            function()
            return
            yield

        return self.submit(task())

    def submit(self, task: Task[T]) -> Future[T]:
        """Queue a task, from any thread, the engine's own too. Cancel the future to drop it.

        The future's error is whatever the task raised, or EngineFailed.
        """
        job = Job(task)
        self._inbox.put(job)
        if (drafter := self.runner.drafter) is not None:
            drafter.interrupt()
        if not self._thread.is_alive() or self._ended:
            # The inbox is not read any more.
            job.refuse(EngineFailed("the engine is not running"))
        return job.future

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._beat = time.monotonic()
                self._admit()
                self._batch = self._next_batch()
                outcomes = self._chain() or self._answer([(rows, job.need.sample) for job, rows in self._batch.items()])
                for (job, rows), outcome in zip(self._batch.items(), outcomes, strict=True):
                    self._conclude(job, rows, outcome)
        except BaseException:
            log.exception("the engine thread died")
            if self._on_failure is not None:
                self._on_failure()
        finally:
            self._fail_all()

    def _admit(self) -> None:
        """Start what arrived; wait for something while there is nothing to do."""
        stalled = bool(self._ready) and not self._batch
        try:
            while True:
                wait_s = _STALL_S if stalled else 0.0 if self._ready else _IDLE_BEAT_S
                job, stalled = self._inbox.get(timeout=wait_s), False
                if job is None:
                    return
                self._checked = False
                self._advance(job, None)
        except queue.Empty:
            self._check_pages()

    def _check_pages(self) -> None:
        """Check pages while nothing runs: a lost page, or one with two owners, ends the engine before two texts mix."""
        if not (self._ready or self._checked):
            self.runner.pool.check_integrity()
            self._checked = True

    def _conclude(self, job: Job, rows: Rows, outcome: ForwardResult | Exception) -> None:
        """Hand a job its outcome, or queue it again where only a part of its rows was run."""
        sequence = rows.sequence
        if isinstance(outcome, NonFiniteLogits):
            self.runner.pool.release(sequence, poisoned=True)
        if isinstance(outcome, Exception) or sequence.num_cached >= job.need.length:
            self._advance(job, outcome)
        else:
            self._ready.append(job)

    def _advance(self, job: Job, outcome: ForwardResult | Exception | None) -> None:
        """Hand an outcome to a job, and queue it again if it needs more."""
        if job.advance(outcome):
            self._ready.append(job)

    def _next_batch(self) -> dict[Job, Rows]:
        """Take the jobs that run now; drop those that were cancelled, or whose sequence was closed under them."""
        waiting: list[Job] = []
        for job in self._ready:
            if not job.future.cancelled() and self.runner.pool.is_open(job.need.sequence):
                waiting.append(job)
            else:
                job.fail(InternalError("the sequence was closed"))
        plan = self._scheduler.plan([job.need for job in waiting])
        self._ready = deque(job for index, job in enumerate(waiting) if index not in plan)
        return {waiting[index]: rows for index, rows in plan.items()}

    def _chain(self) -> Sequence[ForwardResult | NonFiniteLogits] | None:
        """Run several forwards in a row if all of the batch allow it and no other job waits; None: they did not run.

        Branches run a token at a time between other jobs, unless their whole draft is one call.
        """
        needs = [job.need for job in self._batch]
        num_steps = min((need.most_steps for need in needs), default=1)
        if num_steps == 1 or not have_one_law(need.sample for need in needs):
            return None
        if (drafter := self.runner.drafter) is not None:
            # Before the inbox is read: a job that arrives after this ends the call.
            drafter.resume()
        if self._ready or not self._inbox.empty() or not all(rows.num_logits for rows in self._batch.values()):
            return None
        links = [Link(rows, job.need.sample) for job, rows in self._batch.items() if job.need.sample is not None]
        takes_turns = not self._chains or any(need.sequence.is_branch for need in needs)
        if takes_turns and not in_one_call(self.runner, links, num_steps):
            return None
        if not all(self.runner.pool.extend(need.sequence, need.length + num_steps - 1) for need in needs):
            return None
        self._forward_start_s = time.monotonic()
        return run_chain(self.runner, links, num_steps)

    def _answer(self, batch: list[tuple[Rows, SamplingStep | None]]) -> list[ForwardResult | Exception]:
        """Return each entry's result, or the error that is its own.

        Rows may be run twice: the same keys and values are written to the same places. Once they are marked cached,
        only sampling is done again.
        """
        self._forward_start_s = time.monotonic()
        outcomes: list[Any] = each_its_own(self.runner.forward, [rows for rows, _ in batch])
        sound = [i for i, outcome in enumerate(outcomes) if not isinstance(outcome, Exception)]
        # A part of a prompt has no logits yet, and nothing is sampled.
        steps = [step if rows.num_logits else None for rows, step in batch]
        sampled = each_its_own(self._sample, [(outcomes[i], steps[i]) for i in sound])
        for index, outcome in zip(sound, sampled, strict=True):
            outcomes[index] = outcome
        return outcomes

    def _sample(self, batch: list[tuple[torch.Tensor, SamplingStep | None]]) -> list[ForwardResult | NonFiniteLogits]:
        return answers([logits for logits, _ in batch], [step for _, step in batch], self.runner.chooser)

    def _fail_all(self) -> None:
        self._ended = True
        jobs = [*self._batch, *self._ready]
        while not self._inbox.empty():
            job = self._inbox.get()
            if job is not None:
                jobs.append(job)
        for job in jobs:
            job.fail(EngineFailed("the engine stopped"))
