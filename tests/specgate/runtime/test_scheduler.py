"""What runs in the next forward: decoding always, prompts in chunks and by turns, pages from who can spare them."""

import sys
import threading
from random import Random
from typing import Any

import pytest

from specgate.runtime.kv_pages import KVSequence, PagePool
from specgate.runtime.scheduler import PATIENCE, ForwardRequest, Limits, Rows, Scheduler, logits_of

LIMITS = Limits(max_batch_tokens=64, prefill_chunk=40, lone_chunk=50)


def decoding(pool: PagePool, length: int = 10, name: int = 0) -> ForwardRequest:
    """A need of one more token."""
    sequence = pool.open([name] * length, pool.num_pages * pool.page_size)
    assert pool.extend(sequence, length)
    sequence.num_cached = length - 1
    return ForwardRequest(sequence, 1, length)


def prompt(pool: PagePool, length: int, name: int = 0) -> ForwardRequest:
    return ForwardRequest(pool.open(range(name, name + length), length), 0, length)


def run(plan: dict[int, Rows]) -> None:
    """What a forward does to sequences."""
    for rows in plan.values():
        rows.sequence.num_cached += rows.num_rows


def sizes(plan: dict[int, Rows]) -> dict[int, int]:
    return {index: rows.num_rows for index, rows in plan.items()}


def test_every_one_that_decodes_runs_and_prompts_fill_the_rest() -> None:
    pool = PagePool(64, 16)
    needs = [prompt(pool, 100), decoding(pool), prompt(pool, 45, 500), decoding(pool)]
    plan = Scheduler(pool, LIMITS).plan(needs)
    assert sizes(plan) == {1: 1, 3: 1, 0: 40}
    assert plan[1] == Rows(needs[1].sequence, 1, 1)
    assert plan[0].num_logits == 0


def test_a_prompt_alone_takes_longer_chunks_and_ends_with_its_logits() -> None:
    pool = PagePool(64, 16)
    need = prompt(pool, 120)._replace(num_logits=3)
    scheduler = Scheduler(pool, LIMITS)
    chunks = []
    while need.sequence.num_cached < need.length:
        plan = scheduler.plan([need])
        chunks.append(plan[0][1:])
        run(plan)
    assert chunks == [(50, 0), (50, 0), (20, 3)]


def test_rows_whose_logits_are_needed_are_never_cut_apart() -> None:
    pool = PagePool(64, 16)
    scheduler = Scheduler(pool, LIMITS)
    need = prompt(pool, 52)._replace(num_logits=51)
    assert scheduler.plan([need])[0][1:] == (1, 0)
    need = prompt(pool, 52)._replace(num_logits=52)
    assert scheduler.plan([need])[0][1:] == (52, 52)


def test_prompts_share_the_chunk_in_order() -> None:
    pool = PagePool(64, 16)
    needs = [prompt(pool, 35), prompt(pool, 90, 500), prompt(pool, 90, 900)]
    assert sizes(Scheduler(pool, LIMITS).plan(needs)) == {0: 35, 1: 15}


def test_a_prompt_takes_short_chunks_while_somebody_may_come_back() -> None:
    """Who is with its client decodes again in a moment, and waits for the chunk that runs then."""
    pool = PagePool(64, 16)
    idle, need = decoding(pool), prompt(pool, 120)
    scheduler = Scheduler(pool, LIMITS)
    assert sizes(scheduler.plan([need])) == {0: 40}
    pool.free(idle.sequence)
    assert sizes(scheduler.plan([need])) == {0: 50}


def test_a_long_proposal_is_no_prompt() -> None:
    """All its rows need logits; it does not wait until prompts have had their turns."""
    pool = PagePool(64, 16)
    long = decoding(pool, 10, 1)
    long.sequence.append([0] * 60)
    long = ForwardRequest(long.sequence, 61, 70)
    assert sizes(Scheduler(pool, LIMITS).plan([prompt(pool, 100), prompt(pool, 100, 500), long])) == {2: 61, 0: 40}


def test_prompts_get_on_however_many_decode() -> None:
    pool = PagePool(200, 16)
    needs = [prompt(pool, 100), *(decoding(pool, name=n) for n in range(100))]
    plan = Scheduler(pool, LIMITS).plan(needs)
    assert plan[0].num_rows == 40
    assert sum(sizes(plan).values()) == 64


def test_a_known_prefix_is_not_run_again() -> None:
    pool = PagePool(64, 16)
    scheduler = Scheduler(pool, LIMITS)
    first = prompt(pool, 48)
    run(scheduler.plan([first]))
    pool.remember(first.sequence)
    assert sizes(scheduler.plan([prompt(pool, 48)])) == {0: 16}


def grow(need: ForwardRequest, count: int) -> ForwardRequest:
    need.sequence.append([0] * count)
    return need._replace(length=len(need.sequence))


def test_pages_come_from_who_waits_for_its_client_first() -> None:
    pool = PagePool(4, 16)
    oldest, idle, young, youngest = (decoding(pool, 16, name) for name in range(4))
    plan = Scheduler(pool, LIMITS).plan([grow(oldest, 1), young, youngest])
    assert sizes(plan) == {0: 2, 1: 1, 2: 1}
    assert (idle.sequence.num_cached, idle.sequence.block_table) == (0, [])


def test_pages_come_from_who_came_last_then() -> None:
    pool = PagePool(3, 16)
    oldest, young, youngest = (decoding(pool, 16, name) for name in range(3))
    plan = Scheduler(pool, LIMITS).plan([grow(oldest, 1), young, youngest])
    assert sizes(plan) == {0: 2, 1: 1}
    assert youngest.sequence.block_table == []


def test_the_younger_one_waits_and_nobody_older_is_robbed_for_it() -> None:
    pool = PagePool(2, 16)
    scheduler = Scheduler(pool, LIMITS)
    old, young = decoding(pool, 16, 1), decoding(pool, 16, 2)
    young = grow(young, 1)
    assert sizes(scheduler.plan([young, old])) == {1: 1}
    assert old.sequence.num_cached == 15
    assert sizes(scheduler.plan([young, grow(old, 1)])) == {1: 2}
    assert young.sequence.block_table == []


def test_sessions_may_open_while_others_are_robbed() -> None:
    pool = PagePool(2, 16)
    scheduler = Scheduler(pool, LIMITS)
    one, other = grow(decoding(pool, 16, 1), 1), grow(decoding(pool, 16, 2), 1)
    opening = threading.Thread(target=lambda: [pool.open([], 16) for _ in range(5000)])
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        opening.start()
        while opening.is_alive():
            for need in (one, other):
                scheduler.plan([need])
    finally:
        opening.join()
        sys.setswitchinterval(interval_s)


def test_who_is_with_its_client_keeps_its_pages_for_a_while() -> None:
    pool = PagePool(2, 16)
    scheduler = Scheduler(pool, LIMITS)
    old, young = (ForwardRequest(pool.open([name] * length, 32), 1, length) for name, length in enumerate((32, 9)))
    assert pool.extend(old.sequence, 32)
    old.sequence.num_cached = 31
    assert sizes(scheduler.plan([old])) == {0: 1}
    assert [scheduler.plan([young]) for _ in range(PATIENCE - 1)] == [{}] * (PATIENCE - 1)
    assert sizes(scheduler.plan([young])) == {0: 9}
    assert old.sequence.block_table == []


def test_the_oldest_gets_on_also_as_a_prompt() -> None:
    """Those that decode are chosen first, and there may be one of them in every forward."""
    pool = PagePool(3, 16)
    scheduler = Scheduler(pool, LIMITS)
    oldest = prompt(pool, 40, 500)
    busy = decoding(pool, 16)
    assert sizes(scheduler.plan([busy, oldest])) == {1: 40}
    assert busy.sequence.block_table == []


def test_two_that_do_not_fit_together_do_not_compute_everything_twice() -> None:
    """Each is away for four forwards between its rounds, time enough for the other one to take its pages."""
    pool = PagePool(8, 16)
    scheduler = Scheduler(pool, Limits(64, 16, 16))
    sequences = [pool.open(range(first, first + 80), 120) for first in (0, 500)]
    ready, away, num_rows = {s.serial: ForwardRequest(s, 1, 80) for s in sequences}, dict[int, int](), 0
    for step in range(1000):
        for serial in [serial for serial, back in away.items() if back == step]:
            del away[serial]
            sequence = pool.sequences[serial]
            ready[serial] = ForwardRequest(sequence, 1, len(sequence))
        for rows in scheduler.plan(list(ready.values())).values():
            sequence = rows.sequence
            sequence.num_cached += rows.num_rows
            num_rows += rows.num_rows
            if sequence.num_cached == len(sequence):
                del ready[sequence.serial]
                sequence.append([0])
                away[sequence.serial] = step + 4
            if len(sequence) == 120:
                del away[sequence.serial]
                pool.free(sequence)
    assert not pool.sequences
    assert num_rows < 2 * 2 * 120


def test_nobody_is_robbed_for_one_that_would_not_get_enough() -> None:
    """It waits for the oldest, who is with its client; meanwhile the youngest gets on."""
    pool = PagePool(5, 16)
    scheduler = Scheduler(pool, LIMITS)
    oldest, waiting = decoding(pool, 16), prompt(pool, 40, 500)
    run(scheduler.plan([grow(oldest, 32)]))
    youngest = decoding(pool, 16)
    for _ in range(PATIENCE - 2):
        assert sizes(scheduler.plan([waiting, youngest])) == {1: 1}
    assert oldest.sequence.block_table
    assert waiting.sequence.block_table == []


def test_who_is_robbed_waits_for_the_next_forward_and_begins_with_what_is_known() -> None:
    pool = PagePool(6, 16)
    scheduler = Scheduler(pool, LIMITS)
    oldest, known = decoding(pool, 16), prompt(pool, 80, 500)
    run(scheduler.plan([known]))
    run(scheduler.plan([known]))
    known = grow(known, 40)
    assert sizes(scheduler.plan([grow(oldest, 1), known])) == {0: 2}
    assert known.sequence.block_table == []
    scheduler.plan([known])
    assert known.sequence.num_cached == 64


@pytest.mark.parametrize("seed", range(100))
def test_all_get_on_however_short_pages_are(seed: int) -> None:
    """Eight come in any order, some with a prefix that is known, and there are pages for one or two of them.

    After each token they are with their clients: of every other seed for a moment, or for longer than others wait.
    """
    rng = Random(seed)
    pool = PagePool(9, 16)
    scheduler = Scheduler(pool, Limits(max_batch_tokens=40, prefill_chunk=8, lone_chunk=16))
    names = rng.choices((0, 500), k=8)
    sequences = [pool.open(range(name, name + rng.choice((1, 5, 31, 48, 90))), 130) for name in names]
    ready = [ForwardRequest(sequence, 1, len(sequence)) for sequence in rng.sample(sequences, 8)]
    away: list[tuple[int, KVSequence]] = []
    for step in range(2000 if seed % 2 else 300):
        ready += [ForwardRequest(one, 1, len(one)) for back, one in away if back == step]
        away = [item for item in away if item[0] > step]
        plan = scheduler.plan(ready)
        pool.check_integrity()
        running = [rows.sequence for rows in plan.values()]
        written = [page for one in running for page in one.block_table[one.num_cached // 16 :]]
        assert len(set(written)) == len(written)
        run(plan)
        ready = [need for index, need in enumerate(ready) if index not in plan]
        for sequence in running:
            if sequence.num_cached < len(sequence):
                ready.append(ForwardRequest(sequence, 1, len(sequence)))
            elif grows(pool, sequence, rng):
                away.append((step + (rng.choice((1, 3, 40)) if seed % 2 else 1), sequence))
    assert ready == []
    assert away == []


def grows(pool: PagePool, sequence: KVSequence, rng: Random) -> bool:
    """Let one that has just run go on with some tokens more; from the hundredth one on it ends."""
    pool.remember(sequence)
    sequence.append([0] * rng.choice((1, 5, 30)))
    if len(sequence) >= 100:
        pool.free(sequence)
    return pool.is_open(sequence)


def test_somebody_may_open_while_a_victim_is_looked_for() -> None:
    """``open`` is called on another thread."""

    class Opening:
        serial, last_plan, is_branch = 9, 0, False

        @property
        def block_table(self) -> list[int]:
            pool.open([], 16)
            return []

    pool = PagePool(2, 16)
    old, young = decoding(pool, 16, 1), decoding(pool, 16, 2)
    later: Any = Opening()
    pool.sequences[9] = later
    assert sizes(Scheduler(pool, LIMITS).plan([grow(old, 1), young])) == {0: 2}


def test_who_was_robbed_is_a_prompt_again() -> None:
    pool = PagePool(8, 16)
    scheduler = Scheduler(pool, Limits(64, 20, 20))
    need = decoding(pool, 60)
    pool.release(need.sequence, poisoned=True)
    assert sizes(scheduler.plan([need])) == {0: 20}


def test_logits_that_are_gone_are_made_again() -> None:
    sequence = KVSequence(range(8))
    sequence.num_cached = 8
    need = next(logits_of(sequence, 3))
    assert need == ForwardRequest(sequence, 3, 8)
    assert sequence.num_cached == 5


# Branches: guesses, that nobody is to wait for.


def branch_of(pool: PagePool, trunk: ForwardRequest) -> ForwardRequest:
    """A branch that needs one more token than its trunk has cached."""
    branch = pool.fork(trunk.sequence, trunk.sequence.num_cached)
    branch.append([1])
    return ForwardRequest(branch, 1, len(branch))


def test_branches_run_in_a_forward_of_their_own() -> None:
    pool = PagePool(16, 16)
    trunk, other = decoding(pool), decoding(pool, name=2)
    scheduler = Scheduler(pool, LIMITS)
    branches = [branch_of(pool, trunk) for _ in range(3)]
    assert sizes(scheduler.plan([branches[0], other, branches[1], branches[2]])) == {1: 1}
    assert sizes(scheduler.plan([branches[0], prompt(pool, 30, 500), branches[1]])) == {1: 30}
    assert sizes(scheduler.plan(branches)) == {0: 1, 1: 1, 2: 1}


def test_branches_that_are_too_many_for_a_forward_take_turns() -> None:
    pool = PagePool(100, 16)
    trunk = decoding(pool)
    needs = [branch_of(pool, trunk) for _ in range(70)]
    assert len(Scheduler(pool, LIMITS).plan(needs)) == 64


def test_branches_take_free_pages_only() -> None:
    pool = PagePool(4, 16)
    trunk, idle = decoding(pool), decoding(pool, name=2)
    branches = [branch_of(pool, trunk) for _ in range(3)]
    assert sizes(Scheduler(pool, LIMITS).plan(branches)) == {0: 1, 1: 1}
    assert not pool.is_open(branches[2].sequence)
    assert idle.sequence.block_table
    pool.check_integrity()


def test_pages_come_from_branches_first() -> None:
    pool = PagePool(4, 16)
    silent, trunk, asking = decoding(pool, name=1), decoding(pool, name=2), decoding(pool, 16, 3)
    branch = branch_of(pool, trunk)
    scheduler = Scheduler(pool, LIMITS)
    scheduler.plan([branch])
    for _ in range(PATIENCE + 1):
        scheduler.plan([trunk, asking])
    assert sizes(scheduler.plan([grow(asking, 1)])) == {0: 2}
    assert not pool.is_open(branch.sequence)
    assert silent.sequence.block_table
    pool.check_integrity()


def test_guessing_costs_nobody_patience() -> None:
    pool = PagePool(4, 16)
    oldest, asking = decoding(pool, 16, 1), decoding(pool, 16, 2)
    scheduler = Scheduler(pool, LIMITS)
    scheduler.plan([oldest, asking])
    for _ in range(2 * PATIENCE):
        branch = branch_of(pool, asking)
        scheduler.plan([branch])
        pool.discard(branch.sequence)
    filler = decoding(pool, 32, 3)
    assert sizes(scheduler.plan([grow(asking, 1), filler])) == {0: 2}
    assert oldest.sequence.block_table
