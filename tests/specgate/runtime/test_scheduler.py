"""What runs in the next forward: decoding always, prompts in chunks and by turns, pages from who can spare them."""

import sys
import threading
from collections.abc import Sequence
from random import Random

from specgate.runtime.kv_pages import PagePool
from specgate.runtime.scheduler import PATIENCE_PLANS, ForwardRequest, Limits, Rows, Scheduler

LIMITS = Limits(max_batch_tokens=64, prefill_chunk=40, lone_chunk=50)


class Bench:
    """Pages of 16 tokens, a scheduler over them, and sequences that need something."""

    def __init__(self, num_pages: int, limits: Limits = LIMITS) -> None:
        self.pool = PagePool(num_pages, 16)
        self.scheduler = Scheduler(self.pool, limits)

    def decoding(self, length: int = 10, name: int = 0) -> ForwardRequest:
        """A need of one more token."""
        sequence = self.pool.open([name] * length, self.pool.num_pages * 16)
        assert self.pool.extend(sequence, length)
        sequence.num_cached = length - 1
        return ForwardRequest(sequence, 1, length)

    def prompt(self, length: int, name: int = 0) -> ForwardRequest:
        return ForwardRequest(self.pool.open(range(name, name + length), length), 0, length)

    def branch_of(self, trunk: ForwardRequest) -> ForwardRequest:
        """A branch that needs one more token than its trunk has cached."""
        branch = self.pool.fork(trunk.sequence, trunk.sequence.num_cached)
        branch.append([1])
        return ForwardRequest(branch, 1, len(branch))

    def plan(self, *needs: ForwardRequest) -> dict[int, int]:
        """Return how many rows of which need run next."""
        return {index: rows.num_rows for index, rows in self.scheduler.plan(needs).items()}

    def run(self, *needs: ForwardRequest) -> dict[int, Rows]:
        """Plan, and do what a forward does to sequences."""
        plan = self.scheduler.plan(needs)
        for rows in plan.values():
            rows.sequence.num_cached += rows.num_rows
        return plan


def grow(need: ForwardRequest, count: int) -> ForwardRequest:
    need.sequence.append([0] * count)
    return need._replace(length=len(need.sequence))


def test_every_one_that_decodes_runs_and_prompts_fill_the_rest() -> None:
    bench = Bench(64)
    needs = [bench.prompt(35), bench.decoding(), bench.prompt(90, 500), bench.decoding()]
    plan = bench.scheduler.plan(needs)
    assert [(index, *rows[1:]) for index, rows in plan.items()] == [(1, 1, 1), (3, 1, 1), (0, 35, 0), (2, 5, 0)]


def test_a_prompt_alone_takes_longer_chunks_and_ends_with_its_logits_which_are_never_cut_apart() -> None:
    bench = Bench(64)
    need = bench.prompt(120)._replace(num_logits=3)
    assert [bench.run(need)[0][1:] for _ in range(3)] == [(50, 0), (50, 0), (20, 3)]
    need = bench.prompt(52, 500)
    assert bench.scheduler.plan([need._replace(num_logits=51)])[0][1:] == (1, 0)
    assert bench.scheduler.plan([need._replace(num_logits=52)])[0][1:] == (52, 52)


def test_a_prompt_takes_short_chunks_while_somebody_may_come_back() -> None:
    """Who is with its client decodes again in a moment, and waits for the chunk that runs then."""
    bench = Bench(64)
    idle, need = bench.decoding(), bench.prompt(120)
    assert bench.plan(need) == {0: 40}
    bench.pool.free(idle.sequence)
    assert bench.plan(need) == {0: 50}


def test_a_long_proposal_is_no_prompt() -> None:
    """All its rows need logits; it does not wait until prompts have had their turns."""
    bench = Bench(64)
    long = grow(bench.decoding(10, 1), 60)._replace(num_logits=61)
    assert bench.plan(bench.prompt(100), bench.prompt(100, 500), long) == {2: 61, 0: 40}


def test_parts_of_prompts_whose_logits_are_wanted_take_turns() -> None:
    bench = Bench(64)
    parts = [bench.prompt(90, name)._replace(num_logits=40, length=40, is_prompt=True) for name in (1, 500, 900)]
    assert bench.plan(bench.decoding(), *parts) == {0: 1, 1: 40}


def test_prompts_get_on_however_many_decode() -> None:
    bench = Bench(200)
    sizes = bench.plan(bench.prompt(100), *(bench.decoding(name=n) for n in range(100)))
    assert (sizes[0], sum(sizes.values())) == (40, 64)


def test_a_known_prefix_is_not_run_again() -> None:
    bench = Bench(64)
    first = bench.prompt(48)
    bench.run(first)
    bench.pool.remember(first.sequence)
    assert bench.plan(bench.prompt(48)) == {0: 16}


# Too few pages.


def test_pages_come_from_who_waits_for_its_client_then_from_who_came_last() -> None:
    bench = Bench(4)
    oldest, idle, young, youngest = (bench.decoding(16, name) for name in range(4))
    assert bench.plan(grow(oldest, 1), young, youngest) == {0: 2, 1: 1, 2: 1}
    assert (idle.sequence.num_cached, idle.sequence.block_table) == (0, [])
    assert bench.plan(grow(oldest, 16), young, youngest) == {0: 18, 1: 1}
    assert youngest.sequence.block_table == []


def test_the_younger_one_waits_and_nobody_older_is_robbed_for_it() -> None:
    bench = Bench(2)
    old, young = bench.decoding(16, 1), grow(bench.decoding(16, 2), 1)
    assert bench.plan(young, old) == {1: 1}
    assert old.sequence.num_cached == 15
    assert bench.plan(young, grow(old, 1)) == {1: 2}
    assert young.sequence.block_table == []


def test_sessions_may_open_while_others_are_robbed() -> None:
    """``open`` is called on another thread."""
    bench = Bench(2)
    needs = [grow(bench.decoding(16, name), 1) for name in (1, 2)]
    opening = threading.Thread(target=lambda: [bench.pool.open([], 16) for _ in range(5000)])
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        opening.start()
        while opening.is_alive():
            for need in needs:
                bench.plan(need)
    finally:
        opening.join()
        sys.setswitchinterval(interval_s)


def test_who_is_with_its_client_keeps_its_pages_for_a_while() -> None:
    bench = Bench(2)
    old, young = bench.prompt(32), bench.prompt(9, 500)
    bench.run(old)
    assert [bench.plan(young) for _ in range(PATIENCE_PLANS - 1)] == [{}] * (PATIENCE_PLANS - 1)
    assert bench.plan(young) == {0: 9}
    assert old.sequence.block_table == []


def test_the_oldest_gets_on_also_as_a_prompt() -> None:
    """Those that decode are chosen first, and there may be one of them in every forward."""
    bench = Bench(3)
    oldest, busy = bench.prompt(40, 500), bench.decoding(16)
    assert bench.plan(busy, oldest) == {1: 40}
    assert busy.sequence.block_table == []


def test_nobody_is_robbed_for_one_that_would_not_get_enough() -> None:
    """It waits for the oldest, who is with its client; meanwhile the youngest gets on."""
    bench = Bench(5)
    oldest, waiting = bench.decoding(16), bench.prompt(40, 500)
    bench.run(grow(oldest, 32))
    youngest = bench.decoding(16)
    for _ in range(PATIENCE_PLANS - 2):
        assert bench.plan(waiting, youngest) == {1: 1}
    assert oldest.sequence.block_table
    assert waiting.sequence.block_table == []


def test_who_is_robbed_waits_for_the_next_forward_and_begins_with_what_is_known() -> None:
    bench = Bench(6)
    oldest, known = bench.decoding(16), bench.prompt(80, 500)
    bench.run(known)
    bench.run(known)
    known = grow(known, 40)
    assert bench.plan(grow(oldest, 1), known) == {0: 2}
    assert known.sequence.block_table == []
    bench.plan(known)
    assert known.sequence.num_cached == 64


def serve(bench: Bench, rng: Random, num_steps: int, away: Sequence[int], grown: Sequence[int], end: int) -> int:
    """Let all get on that are open, as they come, until each is ``end`` tokens long; return how many rows it took.

    Args:
        away: for how many steps a sequence may be with its client after its tokens.
        grown: how many tokens more it may come back with.
    """
    back, num_rows = {serial: rng.random() - 1 for serial in bench.pool.sequences}, 0
    for step in range(num_steps):
        ready = [one for one in bench.pool.snapshot() if back[one.serial] <= step]
        ready.sort(key=lambda one: back[one.serial])
        plan = bench.scheduler.plan([ForwardRequest(one, 1, len(one)) for one in ready])
        bench.pool.check_integrity()
        written = [page for one, _, _ in plan.values() for page in one.block_table[one.num_cached // 16 :]]
        assert len(set(written)) == len(written)
        for sequence, count, _ in plan.values():
            num_rows += count
            sequence.num_cached += count
            back[sequence.serial] = step
            if sequence.num_cached == len(sequence):
                bench.pool.remember(sequence)
                sequence.append([0] * rng.choice(grown))
                back[sequence.serial] = step + rng.choice(away)
            if len(sequence) >= end:
                bench.pool.free(sequence)
    return num_rows


def test_two_that_do_not_fit_together_do_not_compute_everything_twice() -> None:
    """Each is away for four forwards between its rounds, time enough for the other one to take its pages."""
    bench = Bench(8, Limits(64, 16, 16))
    for first in (0, 500):
        bench.pool.open(range(first, first + 80), 120)
    assert serve(bench, Random(0), 1000, away=(4,), grown=(1,), end=120) < 2 * 2 * 120
    assert not bench.pool.sequences


def test_all_get_on_however_short_pages_are() -> None:
    """Eight come in any order, some with a prefix that is known, and there are pages for one or two of them.

    They are with their clients for a moment, or for longer than others wait.
    """
    for seed in range(100):
        rng, bench = Random(seed), Bench(9, Limits(max_batch_tokens=40, prefill_chunk=8, lone_chunk=16))
        for name in rng.choices((0, 500), k=8):
            bench.pool.open(range(name, name + rng.choice((1, 5, 31, 48, 90))), 130)
        num_steps, away = (2000, (1, 3, 40)) if seed % 2 else (300, (1,))
        serve(bench, rng, num_steps, away, grown=(1, 5, 30), end=100)
        assert not bench.pool.sequences, seed


# Branches: guesses, that nobody is to wait for.


def test_branches_run_in_a_forward_of_their_own() -> None:
    bench = Bench(100)
    trunk, other = bench.decoding(), bench.decoding(name=2)
    branches = [bench.branch_of(trunk) for _ in range(70)]
    assert bench.plan(branches[0], other, *branches[1:]) == {1: 1}
    assert bench.plan(branches[0], bench.prompt(30, 500), branches[1]) == {1: 30}
    # Those that are too many for a forward take turns.
    assert bench.plan(*branches) == dict.fromkeys(range(64), 1)


def test_branches_take_free_pages_only() -> None:
    bench = Bench(4)
    trunk, idle = bench.decoding(), bench.decoding(name=2)
    branches = [bench.branch_of(trunk) for _ in range(3)]
    assert bench.plan(*branches) == {0: 1, 1: 1}
    assert not bench.pool.is_open(branches[2].sequence)
    assert idle.sequence.block_table
    bench.pool.check_integrity()


def test_pages_come_from_branches_first() -> None:
    bench = Bench(4)
    silent, trunk, asking = bench.decoding(name=1), bench.decoding(name=2), bench.decoding(16, 3)
    branch = bench.branch_of(trunk)
    bench.plan(branch)
    for _ in range(PATIENCE_PLANS + 1):
        bench.plan(trunk, asking)
    assert bench.plan(grow(asking, 1)) == {0: 2}
    assert not bench.pool.is_open(branch.sequence)
    assert silent.sequence.block_table
    bench.pool.check_integrity()


def test_guessing_costs_nobody_patience() -> None:
    bench = Bench(4)
    oldest, asking = bench.decoding(16, 1), bench.decoding(16, 2)
    bench.plan(oldest, asking)
    for _ in range(2 * PATIENCE_PLANS):
        branch = bench.branch_of(asking)
        bench.plan(branch)
        bench.pool.discard(branch.sequence)
    filler = bench.decoding(32, 3)
    assert bench.plan(grow(asking, 1), filler) == {0: 2}
    assert oldest.sequence.block_table
