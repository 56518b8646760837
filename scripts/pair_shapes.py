"""Shapes of draft/target pairs, as ``LlamaConfig`` takes them."""

from typing import NamedTuple

Shape = dict[str, int]


class Shapes(NamedTuple):
    """Of a target and its draft. The tokenizer has as many tokens as ``vocab_size`` says, or fewer on little text."""

    vocab_size: int
    target: Shape
    draft: Shape


SMOLLM2_1_7B: Shape = {
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "intermediate_size": 8192,
}
SMOLLM2_135M: Shape = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
}
BUNDLED_TARGET: Shape = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
}
BUNDLED_DRAFT: Shape = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
TINY: Shape = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
PAIRS = {
    "bundled": Shapes(4096, BUNDLED_TARGET, BUNDLED_DRAFT),
    "smollm2": Shapes(49152, SMOLLM2_1_7B, SMOLLM2_135M),
    "tiny": Shapes(512, TINY, TINY),
}
