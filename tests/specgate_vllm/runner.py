"""A fake of vLLM's runner: it calls a proposer after each step as vLLM does, and verifies what it returns.

Its target is the fake model of the other tests, so a text can be compared with what that model alone says.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from specgate_vllm import Proposer
from tests.support.fakes import VOCAB_SIZE, FakeModel

MAX_LENGTH = 256


def vllm_config(*endpoints: str, gamma: int = 3, rank: int = 0, size: int = 1, **settings: Any) -> Any:
    """Return what the proposer reads of vLLM's configuration."""
    return SimpleNamespace(
        additional_config={"specgate": {"drafters": list(endpoints), **settings}},
        model_config=SimpleNamespace(max_model_len=MAX_LENGTH, get_vocab_size=lambda: VOCAB_SIZE, tokenizer=""),
        parallel_config=SimpleNamespace(rank=rank, tensor_parallel_size=size),
        speculative_config=SimpleNamespace(num_speculative_tokens=gamma),
    )


@dataclass(eq=False)
class Request:
    """One request: the prompt, then what the target chose."""

    prompt: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    draft: list[int] = field(default_factory=list)
    num_drafted: int = 0
    num_accepted: int = 0
    num_steps: int = 0
    in_prompt: bool = False
    """Its prompt is read in pieces: the step samples nothing."""

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def text(self) -> tuple[int, ...]:
        return tuple(self.tokens[len(self.prompt) :])


class Runner:
    """Runs steps of ``step_s`` seconds each. ``longest_s`` is the longest call of the proposer."""

    def __init__(self, config: Any, step_s: float = 0.002) -> None:
        self.proposer = Proposer(config)
        self.longest_s = 0.0
        self._step_s = step_s
        self._model = FakeModel()

    def step(self, requests: Sequence[Request]) -> None:
        """Verify the drafts of these rows, and take new ones."""
        time.sleep(self._step_s)
        sampled = [[] if one.in_prompt else self._verified(one) for one in requests]
        token_ids = np.zeros((len(requests), MAX_LENGTH), np.int32)
        for row, one in enumerate(requests):
            token_ids[row, : len(one.tokens)] = one.tokens
        lengths = np.array([len(one.tokens) for one in requests], np.int32)
        start_s = time.monotonic()
        drafts = self.proposer.propose(sampled, lengths, token_ids, slot_mappings=None)
        self.longest_s = max(self.longest_s, time.monotonic() - start_s)
        assert len(drafts) == len(requests)
        for one, draft in zip(requests, drafts, strict=True):
            assert all(0 <= token_id < VOCAB_SIZE for token_id in draft)
            one.draft = draft

    def run(self, requests: Sequence[Request], num_tokens: int) -> None:
        """Step until each has so many tokens; those that have them leave, and the rows below move up."""
        running = list(requests)
        while running:
            self.step(running)
            running = [one for one in running if len(one.text) < num_tokens]

    def _verified(self, request: Request) -> list[int]:
        new: list[int] = []
        request.num_steps += 1
        request.num_drafted += len(request.draft)
        for guess in [*request.draft, -1]:
            new.append(self._model.next_token([*request.tokens, *new]))
            if new[-1] != guess:
                break
        request.num_accepted += len(new) - 1
        request.tokens += new
        return new


def truth(prompt: Sequence[int], num_tokens: int) -> tuple[int, ...]:
    """Return what the target alone says."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(FakeModel().next_token(tokens))
    return tuple(tokens[len(prompt) :])
