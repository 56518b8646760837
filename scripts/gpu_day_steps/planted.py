"""A target and drafts with a planted acceptance rate, at any shape, without training.

The output projections of all blocks are zero, so a hidden state is the last token's embedding. The untied head is that
embedding with its rows permuted, so that each token is followed by one other, in one long cycle. A draft's permutation
differs in a share of 1 - acceptance of the tokens. The best score leads by far, so bfloat16 brings no near ties. A
forward takes what that shape takes: weights are read and multiplied whether they are zero or not.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import LlamaConfig, LlamaForCausalLM

BLOCK = 20
"""Of so many tokens in a row a fixed number is drafted wrong, so that short texts too have the planted acceptance."""
CONTEXT_LENGTH = 2048


class Planted(NamedTuple):
    """A draft that is to be planted."""

    shape: Mapping[str, int]
    acceptance: float


def write_pair(
    folder: Path,
    target_shape: Mapping[str, int],
    drafts: Mapping[str, Planted],
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Write ``folder/target`` and one folder for each draft, by its name; what is there already is kept."""
    vocab_size = target_shape["vocab_size"]
    for name, shape, followers in _models(target_shape, drafts):
        if not (folder / name / "written").exists():
            model = plant(shape | {"vocab_size": vocab_size}, followers, device, dtype)
            model.save_pretrained(folder / name)
            (folder / name / "written").touch()


def _models(
    target_shape: Mapping[str, int], drafts: Mapping[str, Planted]
) -> Iterator[tuple[str, dict[str, int], torch.Tensor]]:
    vocab_size = target_shape["vocab_size"]
    yield "target", dict(target_shape), followers_of(vocab_size, 1.0)
    for name, draft in drafts.items():
        yield name, dict(draft.shape), followers_of(vocab_size, draft.acceptance)


@torch.inference_mode()
def plant(shape: Mapping[str, int], followers: torch.Tensor, device: torch.device, dtype: torch.dtype) -> Any:
    """Return a model that says ``followers[t]`` after token ``t``."""
    torch.manual_seed(0)
    config = LlamaConfig(
        **{"max_position_embeddings": CONTEXT_LENGTH, **shape},
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
    with device:
        model = LlamaForCausalLM(config).to(dtype).eval().requires_grad_(False)
    embedding = model.model.embed_tokens.weight
    embedding.normal_()
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    model.lm_head.weight[followers.to(device)] = embedding.clone()
    return model


def followers_of(vocab_size: int, acceptance: float, seed: int = 0) -> torch.Tensor:
    """Return what follows each token [vocabulary]; at an acceptance below 1 wrong for the rest of them.

    The right followers depend on the seed alone.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(vocab_size, generator=generator)
    followers = torch.empty(vocab_size, dtype=torch.long)
    followers[order] = order.roll(-1)
    wrong = order[_wrong_places(vocab_size, acceptance, generator)]
    followers[wrong] = followers[wrong.roll(1)]
    return followers


def _wrong_places(length: int, acceptance: float, generator: torch.Generator) -> torch.Tensor:
    """Return places of the cycle, equally many in each block, at random within it."""
    num_wrong = round(BLOCK * (1.0 - acceptance))
    places = [first + torch.randperm(BLOCK, generator=generator)[:num_wrong] for first in range(0, length, BLOCK)]
    joined = torch.cat(places)
    return joined[joined < length]
