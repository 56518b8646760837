"""The shapes and lengths of the day: the origin experiment's on a GPU, tiny ones on a dry walk."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from pair_shapes import PAIRS, SMOLLM2_1_7B, SMOLLM2_135M, Shape

from gpu_day_steps.planted import Planted, write_pair
from gpu_day_steps.step import Context

THIN_LAYERS = 4
VOCAB_SIZE = PAIRS["smollm2"].vocab_size
MIDDLE = 0.8
"""The acceptance at which what is not measured at all of them is measured."""
THIN, DRAFT = "draft-thin", "draft"


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured, and how much of it.

    Attributes:
        context: cached tokens before the rows of a timed forward.
        repeats: timed forwards a figure.
        prompts, tokens: of each text that is compared.
        timed_prompts: of each way that is measured, of so many tokens too.
    """

    target: Shape
    draft: Shape
    acceptances: tuple[float, ...] = (0.7, 0.8, 0.9)
    gammas: tuple[int, ...] = (3, 2, 4, 6)
    thin_gammas: tuple[int, ...] = (7, 4, 10)
    sessions: tuple[int, ...] = (1, 8, 16)
    context: int = 512
    repeats: int = 30
    prompts: int = 4
    tokens: int = 96
    timed_prompts: int = 2

    @property
    def thin_draft(self) -> Shape:
        """The draft with fewer blocks: it reads less, and waits less for one kernel after the other."""
        return {**self.draft, "num_hidden_layers": min(THIN_LAYERS, self.draft["num_hidden_layers"])}


_TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
GPU = Sizes({**SMOLLM2_1_7B, "vocab_size": VOCAB_SIZE}, {**SMOLLM2_135M, "vocab_size": VOCAB_SIZE})
DRY = replace(
    GPU,
    target={**_TINY, "intermediate_size": 128, "vocab_size": 512},
    draft={**_TINY, "intermediate_size": 64, "vocab_size": 512},
    acceptances=(0.8,),
    gammas=(3,),
    thin_gammas=(3,),
    sessions=(1, 2),
    context=16,
    repeats=2,
    prompts=2,
    tokens=24,
)


def sizes(context: Context) -> Sizes:
    """Return what this day measures."""
    return DRY if context.where.dry else GPU


def draft_name(acceptance: float, *, thin: bool = False) -> str:
    """Return the folder of a planted draft."""
    return f"{THIN if thin else DRAFT}-{acceptance:g}"


def planted_pair(context: Context) -> Path:
    """Return the folder of the planted models, the same for all steps; write what is missing."""
    of, where = sizes(context), context.where
    folder = where.scratch / "planted"
    drafts = {draft_name(one): Planted(of.draft, one) for one in of.acceptances}
    drafts[draft_name(MIDDLE, thin=True)] = Planted(of.thin_draft, MIDDLE)
    context.progress("writing the planted pair")
    write_pair(folder, of.target, drafts, torch.device(where.device), getattr(torch, where.dtype))
    return folder
