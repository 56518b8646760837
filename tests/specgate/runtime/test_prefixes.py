"""The prefix index against the plain truth: a list of everything that was added."""

import random

import pytest

from specgate.runtime.prefixes import PrefixIndex, Shared


def test_an_empty_index_knows_nothing() -> None:
    index = PrefixIndex(16)
    assert index.find("", [1] * 40, 40) == []
    assert 0 not in index


@pytest.mark.parametrize(("page_size", "block"), [(16, 16), (256, 16), (24, 8), (1000, 8), (7, 1)])
def test_blocks_never_straddle_pages(page_size: int, block: int) -> None:
    assert PrefixIndex(page_size).block == block


def test_rows_of_one_page_come_as_one_piece() -> None:
    index = PrefixIndex(32)
    index.add("", range(70), [5, 3, 9])
    assert index.find("", range(70), 70) == [Shared(5, 0, 32), Shared(3, 32, 64)]
    assert index.find("", range(70), 63) == [Shared(5, 0, 32), Shared(3, 32, 48)]
    assert index.find("", [*range(40), 0, 0, 0, 0, 0, 0, 0, 0], 48) == [Shared(5, 0, 32)]


def test_a_page_that_comes_twice_in_a_row_is_still_two_places() -> None:
    """The second page of one prompt may be the page in which another one's first rows lie."""
    index = PrefixIndex(16)
    index.add("", range(32), [4, 4])
    assert index.find("", range(32), 32) == [Shared(4, 0, 16), Shared(4, 16, 32)]


def test_who_forgets_a_page_forgets_what_goes_on_behind_it() -> None:
    index = PrefixIndex(16)
    index.add("", range(64), [0, 1, 2, 3])
    index.add("", [*range(32), *range(100, 132)], [0, 1, 8, 9])
    index.forget(2)
    assert index.find("", range(64), 64) == [Shared(0, 0, 16), Shared(1, 16, 32)]
    assert (3 in index, 9 in index) == (False, True)
    index.forget(0)
    assert [page for page in range(10) if page in index] == []


def test_random_traffic_finds_the_longest_prefix_that_is_still_there() -> None:
    dice = random.Random(3)
    index = PrefixIndex(8)
    held: dict[int, tuple[list[int], int]] = {}  # page -> the whole prefix up to its end
    for page in range(400):
        tokens = [dice.randrange(2) for _ in range(8)]
        index.add("", tokens, [page])
        known = any(prefix == tokens for prefix, _ in held.values())
        if not known:
            held[page] = (tokens, page)
        if held and dice.random() < 0.3:
            gone = dice.choice(list(held))
            del held[gone]
            index.forget(gone)
        wanted = [dice.randrange(2) for _ in range(8)]
        expected = [Shared(page, 0, 8) for page, (prefix, _) in held.items() if prefix == wanted]
        assert index.find("", wanted, 8) == expected


def test_nothing_is_left_of_a_salt_whose_pages_are_gone() -> None:
    """Every request may bring a salt of its own, for years."""
    index = PrefixIndex(16)
    for salt in ("a", "b"):
        index.add(salt, range(32), [0, 1])
        index.forget(0)
    assert not index._root.children


def test_a_prefix_is_forgotten_in_whosever_page_it_is() -> None:
    index = PrefixIndex(16)
    index.add("", range(32), [0, 1])
    index.add("other", range(32), [2, 3])
    index.forget_prefix("", [*range(16), 99])
    assert [page for page in range(4) if page in index] == [2, 3]
    index.forget_prefix("", [99] * 16)
