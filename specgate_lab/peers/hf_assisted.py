"""HuggingFace's own speculative decoding in one process: ``generate`` with an assistant, or with prompt lookup."""

import copy
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SCHEDULES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "default": MappingProxyType({}),
        # A threshold of 0 turns off the rule that ends a draft early, which belongs to the default schedule.
        "gamma5": MappingProxyType(
            {
                "num_assistant_tokens": 5,
                "num_assistant_tokens_schedule": "constant",
                "assistant_confidence_threshold": 0.0,
            }
        ),
    }
)
"""What each schedule changes in the assistant's generation config: "default" is what the library and the model's own
``generation_config.json`` say, "gamma5" is five draft tokens in every round."""


LOOKUP = "prompt-lookup"
"""The schedule that asks for prompt lookup."""
LOOKUP_TOKENS = 10
"""The library's documentation's own number; with n-grams of up to two tokens, its default."""


class SpeculativeLoop:
    """``generate`` of a loaded target with a drafter: prompt lookup, or an assistant under one of ``SCHEDULES``.

    ``decode_s`` runs from the first tokens that ``generate`` hands to its streamer, which are those of the whole first
    round and waited for both prefills, to the last ones. So it excludes what the rows of our own services exclude;
    ``num_first`` says how many tokens those were.
    """

    def __init__(self, target: Any, device: "torch.device") -> None:
        self._device = device
        self._target = _without_defaults(target)
        self._assistant: Any = None
        self._configs: dict[str, Any] = {}
        self._tokenizers: Mapping[str, Any] = {}

    def assist(self, assistant: Any, tokenizers: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Let a model draft. Raises what the library raises where the two do not go together.

        Args:
            tokenizers: ``tokenizer`` and ``assistant_tokenizer`` where they differ: the library then drafts by strings
                (UAG) where it is greedy, and by the tokens that both have (TLI) where it samples.
        """
        self._assistant, self._tokenizers = assistant, tokenizers
        self._configs = {name: _changed(assistant.generation_config, SCHEDULES[name]) for name in SCHEDULES}
        # A text of special tokens alone is none to another tokenizer.
        prompt = tokenizers["tokenizer"]("a b")["input_ids"] if tokenizers else [0]
        for schedule in SCHEDULES:
            # What the library refuses, it refuses here.
            self.run(prompt, max_tokens=4, schedule=schedule)

    def run(
        self,
        token_ids: list[int],
        max_tokens: int,
        schedule: str,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> dict[str, Any]:
        """Emit ``max_tokens`` tokens, past any end-of-sequence token."""
        import torch

        drafting: dict[str, Any] = {"prompt_lookup_num_tokens": LOOKUP_TOKENS}
        if schedule != LOOKUP:
            # The library keeps what a heuristic schedule has learnt in this very object.
            self._assistant.generation_config = self._configs[schedule]
            drafting = {"assistant_model": self._assistant, **self._tokenizers}
        torch.manual_seed(seed % 2**63)
        prompt = torch.tensor([token_ids], device=self._device)
        arrivals = Arrivals()
        self._target.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            streamer=arrivals,
            max_new_tokens=max_tokens,
            **drafting,
            **_sampling(temperature, top_k, top_p),
        )
        return arrivals.answer()


class Arrivals:
    """What ``generate`` streams to: first the prompt, then the tokens of each round, each with its time."""

    def __init__(self) -> None:
        self._rounds: list[tuple[float, list[int]]] = []
        self._has_prompt = False

    def put(self, token_ids: "torch.Tensor") -> None:
        """Take tokens [1, n], as the library's streamers do."""
        if self._has_prompt:
            self._rounds.append((time.perf_counter(), token_ids.flatten().tolist()))
        self._has_prompt = True

    def end(self) -> None:
        """Nothing is left to do when the last tokens have come."""

    def answer(self) -> dict[str, Any]:
        """Return the answer of the baseline's process."""
        (first_at, first), (last_at, _) = self._rounds[0], self._rounds[-1]
        return {
            "token_ids": [token_id for _, tokens in self._rounds for token_id in tokens],
            "num_first": len(first),
            "decode_s": last_at - first_at,
        }


def _without_defaults(model: Any) -> Any:
    """Let a model's own sampling defaults and its end-of-sequence token alone: a request says all there is to say."""
    from transformers import GenerationConfig

    pad_token_id = model.generation_config.pad_token_id
    model.generation_config = GenerationConfig(pad_token_id=0 if pad_token_id is None else pad_token_id)
    return model


def _changed(config: Any, changes: Mapping[str, Any]) -> Any:
    changed = copy.deepcopy(config)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed


def _sampling(temperature: float, top_k: int, top_p: float) -> dict[str, Any]:
    """Return the arguments of ``generate``; a ``top_k`` of 0 has to be said, the library's default is 50."""
    if temperature == 0.0:
        return {"do_sample": False}
    return {"do_sample": True, "temperature": temperature, "top_k": top_k, "top_p": top_p}
