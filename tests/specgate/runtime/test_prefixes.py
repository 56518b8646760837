"""The prefix index against the plain truth: a list of everything that was added."""

import pickle
import random

from specgate.runtime.prefixes import PrefixIndex, Shared


def pages_of(index: PrefixIndex) -> list[int]:
    return [page for page in range(10) if page in index]


def test_rows_of_one_page_come_as_one_piece() -> None:
    index = PrefixIndex(32)
    assert index.find("", range(70), 70) == []
    index.add("", range(70), [5, 3, 9])
    assert index.find("", range(70), 70) == [Shared(5, 0, 32), Shared(3, 32, 64)]
    assert index.find("", range(70), 63) == [Shared(5, 0, 32), Shared(3, 32, 48)]
    assert index.find("", [*range(40), 0, 0, 0, 0, 0, 0, 0, 0], 48) == [Shared(5, 0, 32)]


def test_a_page_that_comes_twice_in_a_row_is_still_two_places() -> None:
    """The second page of one prompt may be the page in which another one's first rows lie."""
    index = PrefixIndex(16)
    index.add("", range(32), [4, 4])
    assert index.find("", range(32), 32) == [Shared(4, 0, 16), Shared(4, 16, 32)]


def test_a_page_that_is_full_takes_the_place_of_pieces_of_others() -> None:
    """A conversation, each turn of which lies in pages of its own that begin with copies of the turn before."""
    index = PrefixIndex(64)
    index.add("", range(16), [0])
    index.add("", range(48), [1])
    assert index.find("", range(64), 64) == [Shared(0, 0, 16), Shared(1, 16, 48)]
    index.add("", range(80), [2, 3])
    assert index.find("", range(80), 80) == [Shared(2, 0, 64), Shared(3, 64, 80)]
    assert pages_of(index) == [2, 3]
    # One full page is as good as another.
    index.add("", range(64), [4])
    assert pages_of(index) == [2, 3]


def test_who_forgets_a_page_forgets_what_goes_on_behind_it() -> None:
    index = PrefixIndex(16)
    index.add("", range(64), [0, 1, 2, 3])
    index.add("", [*range(32), *range(100, 132)], [0, 1, 8, 9])
    index.forget(2)
    assert index.find("", range(64), 64) == [Shared(0, 0, 16), Shared(1, 16, 32)]
    assert pages_of(index) == [0, 1, 8, 9]
    index.forget(0)
    assert pages_of(index) == []


def test_random_traffic_finds_the_longest_prefix_that_is_still_there() -> None:
    dice = random.Random(3)
    index = PrefixIndex(8)
    held: dict[int, list[int]] = {}  # page -> the whole prefix up to its end
    for page in range(400):
        tokens = [dice.randrange(2) for _ in range(8)]
        index.add("", tokens, [page])
        if tokens not in held.values():
            held[page] = tokens
        if held and dice.random() < 0.3:
            gone = dice.choice(list(held))
            del held[gone]
            index.forget(gone)
        wanted = [dice.randrange(2) for _ in range(8)]
        expected = [Shared(page, 0, 8) for page, prefix in held.items() if prefix == wanted]
        assert index.find("", wanted, 8) == expected


def test_nothing_is_left_of_a_salt_whose_pages_are_gone() -> None:
    """Every request may bring a salt of its own, for years."""
    index = PrefixIndex(16)
    for salt in ("a", "b"):
        index.add(salt, range(32), [0, 1])
        index.forget(0)
    assert pickle.dumps(index) == pickle.dumps(PrefixIndex(16))


def test_a_prefix_is_forgotten_in_whosever_page_it_is() -> None:
    index = PrefixIndex(16)
    index.add("", range(32), [0, 1])
    index.add("other", range(32), [2, 3])
    index.forget_prefix("", [*range(16), 99])
    assert pages_of(index) == [2, 3]
    index.forget_prefix("", [99] * 16)
