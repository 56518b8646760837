"""Page accounting: every page is in one place, once."""

import queue
import random
import threading
import time

import pytest

from specgate.errors import InvalidArgument, KVCacheFull
from specgate.runtime.kv_pages import PagePool, Sequence


def test_a_sequence_gets_the_pages_of_its_whole_length() -> None:
    pool = PagePool(num_pages=8, page_size=16)
    short, exact, longer = (pool.reserve([1, 2], length) for length in (2, 32, 33))
    assert [len(s.block_table) for s in (short, exact, longer)] == [1, 2, 3]
    assert pool.num_free == 2
    assert pool.free_tokens == 32
    owned = [*short.block_table, *exact.block_table, *longer.block_table]
    assert len(set(owned)) == len(owned)


def test_full_for_now_is_another_error_than_never() -> None:
    pool = PagePool(num_pages=4, page_size=16)
    held = pool.reserve([1], 40)
    with pytest.raises(KVCacheFull, match="32 KV tokens are needed and 16 are free"):
        pool.reserve([1], 32)
    with pytest.raises(InvalidArgument, match=r"max_tokens: the session needs 65 KV tokens, the limit is 64"):
        pool.reserve([1], 65)
    assert pool.num_free == 1
    pool.free(held)
    assert len(pool.reserve([1], 64).block_table) == 4


def test_freeing_twice_is_harmless() -> None:
    pool = PagePool(num_pages=4, page_size=16)
    sequence = pool.reserve([1, 2, 3], 20)
    sequence.num_cached = 2
    pool.free(sequence)
    pool.free(sequence)
    assert pool.num_free == 4
    assert sequence.block_table == []
    assert sequence.num_cached == 0
    pool.check_integrity()


def test_a_page_that_is_free_twice_is_noticed() -> None:
    """Two sequences that think the same pages are theirs would read each other's keys."""
    pool = PagePool(num_pages=4, page_size=16)
    sequence = pool.reserve([1], 20)
    twin = Sequence([1], list(sequence.block_table))
    pool.free(sequence)
    pool.check_integrity()
    pool.free(twin)
    with pytest.raises(RuntimeError, match="free list is corrupt"):
        pool.check_integrity()


def test_a_page_that_is_free_and_in_use_makes_too_many() -> None:
    pool = PagePool(num_pages=2, page_size=16)
    pool.free(Sequence([1], [2]))
    with pytest.raises(RuntimeError, match="3 entries of 2"):
        pool.check_integrity()


def test_rollback_is_a_length() -> None:
    sequence = Sequence([1, 2, 3, 4, 5], [0])
    sequence.num_cached = 4
    assert sequence.uncached == [5]
    sequence.truncate(5)
    assert sequence.num_cached == 4
    sequence.truncate(2)
    assert (sequence.token_ids, sequence.num_cached, sequence.uncached) == ([1, 2], 2, [])
    sequence.append([7, 8])
    assert (len(sequence), sequence.num_cached, sequence.uncached) == (4, 2, [7, 8])


def test_random_traffic_loses_no_page() -> None:
    dice = random.Random(5)
    pool = PagePool(num_pages=32, page_size=8)
    held: list[Sequence] = []
    refused = 0
    for _ in range(3000):
        if held and dice.random() < 0.5:
            pool.free(held.pop(dice.randrange(len(held))))
        else:
            try:
                held.append(pool.reserve([1], dice.randint(1, 80)))
            except KVCacheFull:
                refused += 1
        owned = [page for sequence in held for page in sequence.block_table]
        assert len(owned) + pool.num_free == 32
        assert len(set(owned)) == len(owned)
        pool.check_integrity()
    assert refused > 10


def test_one_thread_reserves_while_another_frees() -> None:
    pool = PagePool(num_pages=64, page_size=1)
    handed_over: queue.SimpleQueue[Sequence | None] = queue.SimpleQueue()

    def free_them() -> None:
        while (sequence := handed_over.get()) is not None:
            pool.free(sequence)

    worker = threading.Thread(target=free_them)
    worker.start()
    reserved = 0
    while reserved < 3000:
        try:
            handed_over.put(pool.reserve([1], 5))
            reserved += 1
        except KVCacheFull:
            time.sleep(0)
    handed_over.put(None)
    worker.join()
    assert pool.num_free == 64
    pool.check_integrity()
