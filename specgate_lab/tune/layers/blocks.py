"""The blocks that a search may leave out, and sets of them. Pure."""

import random
from collections.abc import Iterable, Mapping
from typing import NamedTuple


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
    """The blocks of a model; where an MLP is no block of its own, whole layers are left out instead."""

    num_layers: int
    has_mlp_blocks: bool

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each block that can be left out."""
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

    def count(self, skip: BlockSet) -> int:
        """Return how many of ``names`` a set leaves out."""
        return len(skip.attention) + (len(skip.mlp) if self.has_mlp_blocks else 0)

    def can_draft(self, skip: BlockSet) -> bool:
        """Whether something is left out, and a layer with attention is left."""
        return bool(self.count(skip)) and len(skip.attention) < self.num_layers

    def random_set(self, like: BlockSet, draw: random.Random) -> BlockSet:
        """Return a set with as many attention and as many MLP blocks, of any layers."""
        layers = range(self.num_layers)
        attention = frozenset(draw.sample(layers, len(like.attention)))
        return BlockSet(attention, frozenset(draw.sample(layers, len(like.mlp))) if self.has_mlp_blocks else attention)


def warm_starts(harm: Mapping[str, float]) -> list[list[str]]:
    """Return sets to begin a search with: few and many of the blocks that do the least harm when left out alone."""
    order = sorted(harm, key=lambda name: harm[name])
    counts, step = [1, 2], 1
    # 1, 2, 3, 4, 6, 8, 12, ..., up to two thirds of the blocks.
    while counts[-1] + step <= len(order) * 2 // 3:
        counts.append(counts[-1] + step)
        if counts[-1] == step * 4:
            step *= 2
    return [order[:count] for count in counts if count < len(order)]


def _listed(layers: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(layers))) or "none"
