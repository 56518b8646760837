"""Page accounting: every page is in one place, once, or shared by those who may share it."""

from collections.abc import Sequence

import pytest

from specgate.errors import InvalidArgument, KVCacheFull
from specgate.runtime.kv_pages import Copy, KVSequence, PagePool


def sharing(pool: PagePool, ids: Sequence[int], salt: str = "") -> KVSequence:
    """Open a sequence that begins with what is known of its tokens, and needs the last one's row itself."""
    sequence = pool.open(ids, len(ids), salt)
    pool.attach(sequence, len(ids) - 1)
    return sequence


def opened(pool: PagePool, length: int, *, salt: str = "", first: int = 0) -> KVSequence:
    """Return a sequence of ``length`` tokens with pages for them, all of them cached and to be shared."""
    sequence = sharing(pool, range(first, first + length), salt)
    assert pool.extend(sequence, length)
    sequence.num_cached = length
    pool.remember(sequence)
    return sequence


def test_a_sequence_takes_pages_as_it_grows_and_what_does_not_fit_changes_nothing() -> None:
    pool = PagePool(num_pages=4, page_size=16)
    sequence, other = pool.open([1, 2], 64), pool.open([2], 64)
    for length, num_pages in ((2, 1), (16, 1), (17, 2), (33, 3), (20, 3)):
        assert pool.extend(sequence, length)
        assert len(sequence.block_table) == num_pages
        assert pool.num_free == 4 - num_pages
        pool.check_integrity()
    assert not pool.extend(other, 17)
    assert (pool.num_free, other.block_table) == (1, [])
    assert pool.extend(other, 16)


def test_full_for_now_is_another_error_than_never() -> None:
    pool = PagePool(num_pages=4, page_size=16)
    held = opened(pool, 40)
    with pytest.raises(KVCacheFull, match="20 KV tokens are needed and 16 are free"):
        pool.open([1] * 20, 32)
    with pytest.raises(InvalidArgument, match=r"max_tokens: the session needs 65 KV tokens, the limit is 64"):
        pool.open([1], 65)
    pool.free(held)
    pool.open([1] * 20, 64)


def test_a_page_in_two_places_or_in_none_is_noticed() -> None:
    pool = PagePool(num_pages=4, page_size=16)
    sequence = opened(pool, 20)
    pages = list(sequence.block_table)
    for damaged, message in (([*pages, 3], "page 3 has 1 users and counts 0"), (pages[:1], "has 0 users and counts 1")):
        sequence.block_table = damaged
        with pytest.raises(RuntimeError, match=message):
            pool.check_integrity()
    sequence.block_table = pages
    pool.check_integrity()
    pool._free.popitem()  # there is no way to lose a page from outside
    with pytest.raises(RuntimeError, match="are free and in use, or neither"):
        pool.check_integrity()


def test_full_pages_of_a_prefix_are_shared_and_the_rest_is_copied() -> None:
    pool = PagePool(num_pages=8, page_size=32)
    first = opened(pool, 100)
    second = sharing(pool, range(100))
    assert second.block_table[:3] == first.block_table[:3]
    assert pool.num_free == 8 - 4
    assert (second.num_cached, pool.take_copies()) == (96, [])
    third = sharing(pool, [*range(50), 7])
    assert third.block_table[0] == first.block_table[0] != third.block_table[1]
    assert third.num_cached == 48
    assert pool.take_copies() == [Copy(first.block_table[1], third.block_table[1], 0, 16)]
    pool.check_integrity()


def test_nothing_is_shared_across_salts_nor_beyond_what_stays() -> None:
    pool = PagePool(num_pages=9, page_size=16)
    opened(pool, 40, salt="a")
    assert sharing(pool, range(40), "b").block_table == []
    grown = pool.open(range(20), 40, "a")
    grown.append(range(20, 40))
    pool.attach(grown, 39)
    assert grown.num_cached == 16
    drafted = pool.open(range(100, 120), 40)
    drafted.append(range(120, 140))
    assert pool.extend(drafted, 40)
    drafted.num_cached = 40
    pool.remember(drafted)
    assert sharing(pool, range(100, 140)).num_cached == 16


def test_what_is_freed_once_or_twice_can_be_shared_until_its_page_is_needed() -> None:
    pool = PagePool(num_pages=4, page_size=16)
    kept = opened(pool, 48)
    pages = list(kept.block_table)
    pool.free(kept)
    pool.free(kept)
    assert (pool.num_free, pool.sequences, kept.block_table, kept.num_cached) == (4, {}, [], 0)
    pool.check_integrity()
    again = sharing(pool, range(48))
    assert again.block_table == pages[:2]
    pool.free(again)
    pool.free(opened(pool, 64, first=1000))
    assert sharing(pool, range(48)).block_table == []
    pool = PagePool(num_pages=4, page_size=16)
    # Pages that nobody can share are taken first.
    pool.free(opened(pool, 32))
    pool.free(opened(pool, 20, first=500))
    opened(pool, 10, first=900)
    assert sharing(pool, [*range(32), 7]).num_cached == 32


def test_spoilt_contents_and_what_they_were_copied_from_are_shared_with_nobody() -> None:
    """Rows of a prompt are written without logits that would show it; who read them shows it for them."""
    pool = PagePool(num_pages=4, page_size=64)
    pool.free(opened(pool, 40))
    reader = opened(pool, 41)
    assert pool.take_copies() == [Copy(0, 1, 0, 32)]
    pool.release(reader, poisoned=True)
    pool.attach(reader, 40)
    assert reader.num_cached == 0
    pool = PagePool(num_pages=4, page_size=16)
    pool.release(opened(pool, 40), poisoned=True)
    assert sharing(pool, range(40)).num_cached == 0


# Branches.


def test_a_branch_shares_pages_until_one_of_the_two_writes() -> None:
    pool = PagePool(num_pages=8, page_size=16)
    trunk = opened(pool, 40)
    branch = pool.fork(trunk)
    assert (branch.token_ids, branch.block_table) == (trunk.token_ids, trunk.block_table)
    assert pool.num_free == 8 - 3
    branch.append([1, 2])
    assert pool.extend(branch, 42)
    assert branch.block_table[:2] == trunk.block_table[:2]
    assert pool.take_copies() == [Copy(trunk.block_table[2], branch.block_table[2], 0, 8)]
    pool.check_integrity()
    trunk.truncate(35)
    assert pool.extend(trunk, 41)
    assert pool.take_copies() == []
    pool.free(branch)
    pool.free(trunk)
    assert pool.num_free == 8


def test_a_discarded_branch_leaves_its_pages_to_others_and_nothing_to_share() -> None:
    pool = PagePool(num_pages=8, page_size=16)
    branch = pool.fork(opened(pool, 16))
    branch.append(range(500, 532))
    assert pool.extend(branch, 48)
    branch.num_cached = 48
    pool.discard(branch)
    pool.discard(branch)
    assert pool.num_free == 8 - 1
    pool.check_integrity()
    assert sharing(pool, branch.token_ids).num_cached <= 16


def test_pages_of_branches_count_as_free_for_who_comes() -> None:
    pool = PagePool(num_pages=3, page_size=16)
    branch = pool.fork(opened(pool, 16))
    branch.append(range(20))
    assert pool.extend(branch, 36)
    assert (pool.num_free, pool.free_tokens) == (0, 32)
    pool.open(range(32), 32)
    with pytest.raises(KVCacheFull, match="33 KV tokens are needed and 32 are free"):
        pool.open(range(33), 33)
