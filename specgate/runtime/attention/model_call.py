"""A HuggingFace model as a function of one ragged batch."""

import inspect

import torch

from specgate.runtime.attention.interface import Inputs
from specgate.runtime.loading import LoadedModel


class ModelCall:
    """Calls a model on whose layers the paged attention is set.

    Args:
        loaded: the model; its padding rows of the vocabulary are cut off.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._keeps_some = "logits_to_keep" in inspect.signature(loaded.model.forward).parameters

    def __call__(self, inputs: Inputs) -> torch.Tensor:
        """Return the logits of the rows to keep, [rows, vocabulary], in the model's dtype."""
        keep = inputs.keep
        # To transformers 0 means all rows, and spares a copy.
        extra = {"logits_to_keep": 0 if keep is None else keep} if self._keeps_some else {}
        logits: torch.Tensor = self._loaded.model(
            input_ids=inputs.token_ids[None],
            position_ids=inputs.positions[None],
            use_cache=False,
            ragged=inputs.ragged,
            **extra,
        ).logits[0]
        if keep is not None and not self._keeps_some:
            logits = logits[keep]
        return logits[:, : self._loaded.vocab_size]
