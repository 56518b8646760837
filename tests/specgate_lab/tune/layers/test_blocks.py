"""Sets of blocks: names, warm starts, random sets."""

import random

import pytest

from specgate_lab.tune.layers.blocks import Blocks, BlockSet, warm_starts

BLOCKS, WHOLE_LAYERS = Blocks(4, True), Blocks(3, False)


def test_names_stand_for_a_set() -> None:
    skip = BLOCKS.set_of(["attention 1", "mlp 3", "attention 0"])
    assert skip == BlockSet(frozenset({0, 1}), frozenset({3}))
    assert BLOCKS.count(skip) == 3
    assert str(skip) == "attention 0, 1, MLP 3"
    # Where an MLP is no block of its own, whole layers are left out.
    assert WHOLE_LAYERS.names == ("layer 0", "layer 1", "layer 2")
    assert WHOLE_LAYERS.set_of(["layer 2"]) == BlockSet(frozenset({2}), frozenset({2}))


def test_nothing_and_all_attention_cannot_draft() -> None:
    assert not BLOCKS.can_draft(BlockSet())
    assert not BLOCKS.can_draft(BlockSet(frozenset(range(4))))
    assert BLOCKS.can_draft(BlockSet(frozenset(range(3)), frozenset(range(4))))


@pytest.mark.parametrize(
    ("num_blocks", "counts"), [(8, [1, 2, 3, 4]), (60, [1, 2, 3, 4, 6, 8, 12, 16, 24, 32])], ids=["few", "many"]
)
def test_a_search_begins_with_the_blocks_that_do_least_harm(num_blocks: int, counts: list[int]) -> None:
    harm = {f"mlp {index}": 1 - index / 100 for index in range(num_blocks)}
    least = list(reversed(harm))
    assert warm_starts(harm) == [least[:count] for count in counts]


def test_random_sets_have_as_many_blocks_of_each_kind() -> None:
    like = BlockSet(frozenset({1, 2}), frozenset({0}))
    sets = [BLOCKS.random_set(like, random.Random(seed)) for seed in range(20)]
    assert all((len(one.attention), len(one.mlp)) == (2, 1) for one in sets)
    assert len(set(sets)) > 1
    drawn = WHOLE_LAYERS.random_set(BlockSet(frozenset({2}), frozenset({2})), random.Random(0))
    assert drawn.attention == drawn.mlp
    assert WHOLE_LAYERS.count(drawn) == 1
