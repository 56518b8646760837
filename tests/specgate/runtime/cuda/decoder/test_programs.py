"""Programs of one launch side by side, each a process on shared memory: atomics are real, and so is the order."""

import multiprocessing
import random
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from triton.runtime.interpreter import interpreter_builder

from specgate.runtime.cuda.decoder import persistent
from specgate.runtime.cuda.decoder.buffers import DraftBatch, Workspace
from specgate.runtime.cuda.decoder.one_launch import Driver
from specgate.runtime.cuda.decoder.shape import DecoderShape, Tiles
from specgate.runtime.cuda.decoder.weights import StackedWeights
from specgate.runtime.engine.chain import run_chain
from tests.specgate.runtime.cuda.decoder.drafts import (
    GREEDY,
    NOISE,
    ONE_LAUNCH,
    TILES,
    Draws,
    prompts_of,
    same,
    write_tiny,
)

pytestmark = [pytest.mark.triton, pytest.mark.skipif(torch.cuda.is_available(), reason="nothing is interpreted")]
STEPS = 2
_PROCESSES = multiprocessing.get_context("fork")


class Programs(NamedTuple):
    """Launches the persistent kernel, each program in a process that waits at random before it arrives, or looks.

    ``absent`` ones never come.
    """

    number: int
    absent: frozenset[int] = frozenset()
    longest_wait_s: float = 0.002

    def __call__(self, w: StackedWeights, b: DraftBatch, u: Workspace, s: DecoderShape, t: Tiles) -> None:
        shared = [type(part)(*map(_shared, part)) for part in (w, b, u)]
        workers = [
            _PROCESSES.Process(target=self._run, args=(number, *shared, s, t))
            for number in range(self.number)
            if number not in self.absent
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert {worker.exitcode for worker in workers} == {0}
        for own, its in zip((*b, *u), (*shared[1], *shared[2]), strict=True):
            if isinstance(own, torch.Tensor):
                own.copy_(its)

    def _run(self, number: int, *arguments: Any) -> None:
        set_dim, set_index = interpreter_builder.set_grid_dim, interpreter_builder.set_grid_idx
        interpreter_builder.set_grid_dim = lambda *_: set_dim(self.number, 1, 1)
        interpreter_builder.set_grid_idx = lambda *_: set_index(number, 0, 0)
        interpreter_builder.create_atomic_rmw = self._late(interpreter_builder.create_atomic_rmw, number)
        # Where somebody never came, the others compute with what is not there.
        warnings.simplefilter("ignore", RuntimeWarning)
        persistent.launch(*arguments)

    def _late(self, own: Callable[..., Any], number: int) -> Callable[..., Any]:
        waits = random.Random(number)

        def atomic(*arguments: Any) -> Any:
            time.sleep(waits.uniform(0, self.longest_wait_s))
            return own(*arguments)

        return atomic


def _shared(part: Any) -> Any:
    return part.clone().share_memory_() if isinstance(part, torch.Tensor) else part


@pytest.fixture(scope="module")
def draws(tmp_path_factory: pytest.TempPathFactory) -> Draws:
    return Draws.of(write_tiny(tmp_path_factory.mktemp("tiny")))


@pytest.mark.parametrize("number", [2, 3, 5])
def test_several_programs_draft_what_one_does_and_leave_the_barrier_as_it_was(draws: Draws, number: int) -> None:
    prompts, rows = prompts_of(20), [2]
    draws.drafter(ONE_LAUNCH)
    expected = draws.draft(prompts, rows, STEPS, NOISE)
    draws.drafter(Driver("processes", Programs(number), True, TILES._replace(PROGRAMS=8)))
    for _ in range(2):
        assert same(draws.draft(prompts, rows, STEPS, NOISE), expected)


def test_where_a_program_never_comes_the_others_end_and_forwards_in_a_row_draft(draws: Draws, caplog: Any) -> None:
    links_of, texts = (prompts_of(9), [2], GREEDY, STEPS), []
    faulty = Programs(3, frozenset({1}))
    driver = Driver("processes", faulty, True, TILES._replace(LOOKS=100))
    for is_faulty in (False, True):
        if is_faulty:
            draws.drafter(driver)
        with draws.links(*links_of) as links:
            answers = run_chain(draws.runner, links, STEPS)
            assert answers
            texts.append((answers[0].sampled, links[0].rows.sequence.token_ids, links[0].rows.sequence.num_cached))
    assert texts[0] == texts[1]
    assert draws.runner.drafter is None
    assert "ProgramsDidNotMeet" in caplog.text
