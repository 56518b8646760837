"""The draft: a few of its target's layers between the target's own embedding and head, which is cut while it learns.

Pruned so, a draft begins with what the target knows (Men et al., "ShortGPT", 2024), and has its architecture.
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import GenerationConfig, PretrainedConfig

from specgate.errors import InvalidArgument
from specgate.runtime import short_head
from specgate.runtime.layer_skip import LayerSkip, load_without
from specgate.runtime.short_head import ShortHead
from specgate_lab.report import write_json
from specgate_lab.train.lessons import Lessons
from specgate_lab.train.recipe import Recipe


def kept_layers(num_layers: int, keeps: int) -> frozenset[int]:
    """Return which of ``num_layers`` layers a draft of ``keeps`` has: half of them the first ones, half the last ones.

    Raises:
        InvalidArgument: there are not so many.
    """
    if keeps > num_layers:
        raise InvalidArgument("layers", f"{keeps} are more than the target's {num_layers}")
    front = (keeps + 1) // 2
    return frozenset(range(front)) | frozenset(range(num_layers - keeps + front, num_layers))


def new_draft(name: str, config: PretrainedConfig, keeps: int) -> Any:
    """Return a draft in float32 with ``keeps`` of the layers of the model ``name``; embedding and head do not learn.

    Raises:
        InvalidArgument: the model has not so many layers.
        UnsupportedArchitecture: its layers are not where they are in other models.
    """
    depth = int(config.get_text_config().num_hidden_layers)
    others = frozenset(range(depth)) - kept_layers(depth, keeps)
    draft, _ = load_without(name, config, LayerSkip(others, others), dtype=torch.float32, use_safetensors=True)
    draft.requires_grad_(True)
    for shared in (draft.get_input_embeddings(), draft.get_output_embeddings()):
        shared.requires_grad_(False)
    return draft


def round_weights(draft: Any) -> None:
    """Round a draft's weights to bfloat16, as they are stored; nothing else of it, such as rotary angles."""
    for weights in draft.parameters():
        weights.data = weights.data.bfloat16().to(weights.dtype)


class Head(NamedTuple):
    """The tokens that a draft can propose, ascending, None being all; and their share of the target's probability."""

    token_ids: list[int] | None = None
    share: float = 1.0


WHOLE = Head()


def head_of(recipe: Recipe, lessons: Lessons, vocab_size: int) -> Head:
    """Return the tokens to which the target gives the most probability in its texts, as many as the recipe says."""
    if not recipe.cuts_head(vocab_size):
        return WHOLE
    judged = lessons.judged
    ids, probs = lessons.top_ids[judged].flatten().long(), lessons.top_log_probs[judged].float().exp().flatten()
    mass = torch.zeros(vocab_size).index_add_(0, ids, probs)
    chosen = mass.topk(recipe.head_tokens).indices.sort().values
    return Head(chosen.tolist(), float(mass[chosen].sum() / mass.sum()))


def save(draft: Any, head: Head, tokenizer: Any, folder: Path) -> None:
    """Write a draft in bfloat16, with the target's tokenizer and ends of text, and with the tokens of its head.

    Raises:
        InvalidArgument: the disk is full, or the folder cannot be written to.
    """
    ends = draft.generation_config
    draft.generation_config = GenerationConfig(eos_token_id=ends.eos_token_id, pad_token_id=ends.pad_token_id)
    try:
        draft.to(torch.bfloat16).save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
    # safetensors has an error of its own for what the system refuses.
    except Exception as error:
        raise InvalidArgument("out", f"{folder} cannot be written: {error}") from error
    if head.token_ids is not None:
        write_json(folder / short_head.FILE, {"token_ids": head.token_ids}, "out")


class Student:
    """A draft that learns, with the head that it will have."""

    def __init__(self, draft: Any, head: Head = WHOLE) -> None:
        self.draft, token_ids = draft, head.token_ids
        self._whole = draft.get_output_embeddings()
        self.head_size = len(self._whole.weight) if token_ids is None else len(token_ids)
        self._places: torch.Tensor | None = None
        if token_ids is not None:
            short = ShortHead(self._whole, token_ids).to(draft.device)
            self._places = torch.full((short.vocab_size,), self.head_size)
            self._places[torch.tensor(token_ids)] = torch.arange(self.head_size)
            draft.set_output_embeddings(short.rows)

    def logits(self, lessons: Lessons) -> torch.Tensor:
        """Return the draft's logits [positions, head_size] at the positions that are judged, float32."""
        judged = lessons.judged[:, 1:].to(self.draft.device)
        # The distribution of a token is made at the position before it. The head is not asked about the other ones.
        hook = self.draft.get_output_embeddings().register_forward_pre_hook(lambda _, args: (args[0][:, :-1][judged],))
        with hook:
            logits: torch.Tensor = self.draft(**lessons.inputs(self.draft.device), use_cache=False).logits
        return logits.float()

    def choices(self, lessons: Lessons) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the target's likeliest tokens there, as rows of the head, and their probabilities: [positions, TOP].

        A token that the head has not is its last row, with probability 0.
        """
        judged, device = lessons.judged, self.draft.device
        places, probs = lessons.top_ids[judged].long(), lessons.top_log_probs[judged].float().exp()
        if self._places is not None:
            places = self._places[places]
        known = places < self.head_size
        return places.clamp(max=self.head_size - 1).to(device), (probs * known).to(device)

    def put_back(self) -> None:
        """Give the draft its whole head back."""
        self.draft.set_output_embeddings(self._whole)
