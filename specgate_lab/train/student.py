"""The draft before it has learned: a few of its target's layers between the target's own embedding and head.

Pruned so, a draft begins with what the target knows (Men et al., "ShortGPT", 2024), and has its architecture.
"""

from typing import Any

import torch
from transformers import PretrainedConfig

from specgate.errors import InvalidArgument
from specgate.runtime.layer_skip import LayerSkip, load_without
from specgate.runtime.short_head import ShortHead
from specgate_lab.train.lessons import Lessons


def kept_layers(num_layers: int, keeps: int) -> frozenset[int]:
    """Return which of ``num_layers`` layers a draft of ``keeps`` has: as many from the front as from the end, or one more.

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
        UnsupportedArchitecture: the target's layers are not where they are in other models.
    """
    depth = int(config.get_text_config().num_hidden_layers)
    others = frozenset(range(depth)) - kept_layers(depth, keeps)
    draft, _ = load_without(name, config, LayerSkip(others, others), dtype=torch.float32, use_safetensors=True)
    draft.requires_grad_(True)
    for shared in (draft.get_input_embeddings(), draft.get_output_embeddings()):
        shared.requires_grad_(False)
    return draft


def frequent_tokens(lessons: Lessons, vocab_size: int, count: int) -> list[int]:
    """Return the tokens to which the target gives the most probability in its texts, ascending."""
    judged = lessons.judged
    ids, probs = lessons.top_ids[judged].flatten().long(), lessons.top_log_probs[judged].float().exp().flatten()
    mass = torch.zeros(vocab_size).index_add_(0, ids, probs)
    chosen: list[int] = mass.topk(min(count, vocab_size)).indices.sort().values.tolist()
    return chosen


class LearningHead:
    """A draft's head while it learns: the frequent tokens alone, one row each.

    Args:
        draft: gets it; ``whole`` is given back by ``put_back``.
    """

    def __init__(self, draft: Any, token_ids: list[int]) -> None:
        self._draft, self._whole = draft, draft.get_output_embeddings()
        short = ShortHead(self._whole, token_ids)
        self.size = len(token_ids)
        self._places = torch.full((short.vocab_size,), self.size)
        self._places[short.token_ids] = torch.arange(self.size)
        draft.set_output_embeddings(short.rows)

    def places_of(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return which row each token has, ``size`` where it has none."""
        return self._places[token_ids.long()]

    def put_back(self) -> None:
        """Give the draft its whole head back."""
        self._draft.set_output_embeddings(self._whole)
