"""Sets of blocks: names, warm starts, random sets."""

import itertools
import random

from specgate_lab.tune.layers.blocks import Blocks, BlockSet, warm_starts

BLOCKS = Blocks(4, True)


def test_names_and_sets_are_the_same_thing_twice() -> None:
    skip = BLOCKS.set_of(["attention 1", "mlp 3", "attention 0"])
    assert skip == BlockSet(frozenset({0, 1}), frozenset({3}))
    assert BLOCKS.set_of_choices(BLOCKS.choices_of(["mlp 3", "attention 0", "attention 1"])) == skip
    assert BLOCKS.count(skip) == 3
    assert str(skip) == "attention 0, 1, MLP 3"


def test_where_an_mlp_is_no_block_of_its_own_whole_layers_are_left_out() -> None:
    whole = Blocks(3, False)
    assert whole.names == ("layer 0", "layer 1", "layer 2")
    assert whole.set_of(["layer 2"]) == BlockSet(frozenset({2}), frozenset({2}))
    drawn = whole.random_set(BlockSet(frozenset({2}), frozenset({2})), random.Random(0))
    assert drawn.attention == drawn.mlp
    assert len(drawn.attention) == 1
    assert whole.count(drawn) == 1


def test_nothing_and_all_attention_cannot_draft() -> None:
    assert not BLOCKS.can_draft(BlockSet())
    assert not BLOCKS.can_draft(BlockSet(frozenset(range(4))))
    assert BLOCKS.can_draft(BlockSet(frozenset(range(3)), frozenset(range(4))))


def test_a_search_begins_with_what_is_least_missed() -> None:
    harm = {name: index / 10 for index, name in enumerate(reversed(BLOCKS.names))}
    sets = warm_starts(harm)
    assert sets[0] == [BLOCKS.names[-1]]
    assert [len(names) for names in sets] == [1, 2, 3, 4]
    assert all(set(few) < set(more) for few, more in itertools.pairwise(sets))


def test_warm_starts_of_many_blocks_are_few() -> None:
    counts = [len(names) for names in warm_starts({str(index): 0.0 for index in range(60)})]
    assert counts == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]


def test_random_sets_have_as_many_blocks_of_each_kind() -> None:
    like = BlockSet(frozenset({1, 2}), frozenset({0}))
    sets = [BLOCKS.random_set(like, random.Random(seed)) for seed in range(20)]
    assert all((len(one.attention), len(one.mlp)) == (2, 1) for one in sets)
    assert len(set(sets)) > 1
