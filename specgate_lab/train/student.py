"""The draft before it has learned: a small Llama whose embedding and head come from the target."""

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specgate_lab.train.recipe import HEAD_SIZE, Recipe

UNKNOWN_CONTEXT = 2048
MLP_FACTOR = 3
"""Of the draft's width: its MLP is a little wider than the usual 8/3, because a small draft's head is the dear part."""


def new_draft(target: Any, config: LlamaConfig, seed: int) -> Any:
    """Return a draft of random layers.

    Embedding and head are taken over where the draft is as wide as the target, and else factored: each row projected on
    the directions in which the target's rows differ most (the first principal components). They are then scaled so that
    a layer norm before the head gives logits of about 1.
    """
    given, head = (one.weight for one in (target.get_input_embeddings(), target.get_output_embeddings()))
    # What a configuration says of them is not always so.
    config.tie_word_embeddings = given is head
    torch.manual_seed(seed)
    draft: Any = LlamaForCausalLM(config)
    draft.get_input_embeddings().weight.data.copy_(projected(given, config.hidden_size))
    if given is not head:
        draft.get_output_embeddings().weight.data.copy_(projected(head, config.hidden_size))
    return draft


def draft_config(target: Any, recipe: Recipe) -> LlamaConfig:
    """Return the shape of a draft for a target's text configuration; its vocabulary and special tokens are the same."""
    width = recipe.hidden_size or max(HEAD_SIZE, target.hidden_size // 2 // HEAD_SIZE * HEAD_SIZE)
    heads = width // HEAD_SIZE
    context = (getattr(target, name, None) for name in ("max_position_embeddings", "max_seq_len", "seq_length"))
    return LlamaConfig(
        vocab_size=target.vocab_size,
        hidden_size=width,
        intermediate_size=MLP_FACTOR * width,
        num_hidden_layers=recipe.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=next((length for length in context if length), UNKNOWN_CONTEXT),
        bos_token_id=getattr(target, "bos_token_id", None),
        eos_token_id=getattr(target, "eos_token_id", None),
        pad_token_id=getattr(target, "pad_token_id", None),
    )


@torch.inference_mode()
def projected(rows: torch.Tensor, width: int) -> torch.Tensor:
    """Return rows [n, from] as float32 [n, width], on their first principal directions, of mean length 1."""
    rows = rows.float().cpu()
    if rows.shape[1] > width:
        rows = rows @ torch.linalg.eigh(rows.T @ rows).eigenvectors[:, -width:]
    elif rows.shape[1] < width:
        rows = torch.nn.functional.pad(rows, (0, width - rows.shape[1]))
    scaled: torch.Tensor = rows / (rows.norm(dim=-1).mean() + 1e-12)
    return scaled
