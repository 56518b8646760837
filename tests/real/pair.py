"""The pair that scripts/real_model makes: its folders, its services, and the chats in its own words."""

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM

from orchestrator.decode.text import TextTokenizer
from orchestrator.generation.orchestrator import Orchestrator
from scripts import real_model
from tests.real.chats import CHATS
from tests.support.orchestrating import connected
from tests.support.services import Service, running

# Asked for at import: a test's own environment has none of our variables.
ROOT = real_model.default_root()
TARGET = ROOT / real_model.TARGET.name
DRAFT = ROOT / real_model.DRAFT.name
MAX_TOKENS = 64


def missing() -> list[str]:
    """Return the names of the folders that are not there, or not by today's recipe."""
    return [recipe.name for recipe in real_model.missing((real_model.TARGET, real_model.DRAFT), ROOT)]


@cache
def tokenizer() -> TextTokenizer:
    """Return the target's, with its chat template."""
    found = TextTokenizer.load(str(TARGET))
    assert found is not None
    return found


def prompts() -> list[tuple[int, ...]]:
    """Return the token ids of every chat, up to where the assistant's answer begins."""
    return [tokenizer().encode_chat(messages) for messages in CHATS.values()]


@cache
def _model() -> Any:
    return AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)


@cache
def generated(prompt_ids: tuple[int, ...], max_tokens: int = MAX_TOKENS) -> tuple[int, ...]:
    """Return what transformers' own ``generate`` answers, greedy, in float32."""
    batch = torch.tensor([prompt_ids])
    out = _model().generate(batch, attention_mask=torch.ones_like(batch), do_sample=False, max_new_tokens=max_tokens)
    return tuple(out[0, len(prompt_ids) :].tolist())


class Services(NamedTuple):
    """A drafter with the draft, and a verifier with the target."""

    drafter: Service
    verifier: Service

    def connected(self) -> contextlib.AbstractAsyncContextManager[Orchestrator]:
        """An orchestrator that has learned nothing yet."""
        return connected([self.drafter], [self.verifier], tokenizer=TARGET)


@contextlib.contextmanager
def serving(*flags: str) -> Iterator[Services]:
    """Run both services while the context lasts."""
    with running("drafter", DRAFT, *flags) as drafter, running("verifier", TARGET, *flags) as verifier:
        yield Services(drafter, verifier)
