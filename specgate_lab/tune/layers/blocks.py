"""The blocks that a search may leave out, and sets of them. Pure."""

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class BlockSet(NamedTuple):
    """The layers, from 0, whose attention and whose MLP are left out."""

    attention: frozenset[int] = frozenset()
    mlp: frozenset[int] = frozenset()

    def __str__(self) -> str:
        return f"attention {_listed(self.attention)}, MLP {_listed(self.mlp)}"

    def to_object(self) -> dict[str, list[int]]:
        """Return it as a skip file has it."""
        return {"attention": sorted(self.attention), "mlp": sorted(self.mlp)}


class Blocks(NamedTuple):
    """What a model has of them; where an MLP is no block of its own, whole layers are left out instead."""

    num_layers: int
    has_mlp_blocks: bool

    @property
    def names(self) -> tuple[str, ...]:
        """A name for everything that is left out or kept as one."""
        kinds = ("attention", "mlp") if self.has_mlp_blocks else ("layer",)
        return tuple(f"{kind} {layer}" for layer in range(self.num_layers) for kind in kinds)

    def set_of(self, names: Iterable[str]) -> BlockSet:
        """Return the set that these names stand for."""
        attention, mlp = set[int](), set[int]()
        for kind, layer in map(str.split, names):
            if kind != "mlp":
                attention.add(int(layer))
            if kind != "attention":
                mlp.add(int(layer))
        return BlockSet(frozenset(attention), frozenset(mlp))

    def set_of_choices(self, choices: Mapping[str, Any]) -> BlockSet:
        """Return the set of a trial, which says of every name whether it is left out."""
        return self.set_of(name for name, is_left_out in choices.items() if is_left_out)

    def choices_of(self, names: Iterable[str]) -> dict[str, bool]:
        """Return what a trial says where exactly these are left out."""
        chosen = set(names)
        return {name: name in chosen for name in self.names}

    def count(self, skip: BlockSet) -> int:
        """Return how many of ``names`` a set leaves out."""
        return len(skip.attention) + (len(skip.mlp) if self.has_mlp_blocks else 0)

    def can_draft(self, skip: BlockSet) -> bool:
        """Whether something is left out, and a layer with attention is left."""
        return bool(self.count(skip)) and len(skip.attention) < self.num_layers

    def random_set(self, like: BlockSet, draw: random.Random) -> BlockSet:
        """Return a set with as many attention and as many MLP blocks, of any layers."""
        layers = range(self.num_layers)
        if not self.has_mlp_blocks:
            chosen = frozenset(draw.sample(layers, len(like.attention)))
            return BlockSet(chosen, chosen)
        return BlockSet(
            frozenset(draw.sample(layers, len(like.attention))), frozenset(draw.sample(layers, len(like.mlp)))
        )


def warm_starts(harm: Mapping[str, float]) -> list[list[str]]:
    """Return sets to begin a search with: those least missed when they alone are left out, few and many of them."""
    order = sorted(harm, key=lambda name: harm[name])
    return [order[:count] for count in _counts(len(order))]


def _counts(num_blocks: int) -> Sequence[int]:
    """Return 1, 2, 3, 4, 6, 8, 12, ..., up to two thirds of the blocks."""
    counts, step = [1, 2], 1
    while counts[-1] + step <= num_blocks * 2 // 3:
        counts.append(counts[-1] + step)
        if counts[-1] == step * 4:
            step *= 2
    return [count for count in counts if count < num_blocks]


def _listed(layers: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(layers))) or "none"
