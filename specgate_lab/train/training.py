"""Training a draft, so that it can be killed and resume, and judging it on texts that it has not seen."""

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from specgate_lab.train.lessons import Lessons, batches, write_tensors
from specgate_lab.train.recipe import Recipe

MUON_LR, ADAM_LR = 0.02, 0.006
CHECKPOINT_STEPS = 100
CHECKPOINT = "checkpoint.safetensors"
JUDGED_ROWS = 8
"""Rows of one forward that judges: their logits over the whole vocabulary fit in memory."""

OnStep = Callable[[int, float], None]
"""Called with the number of steps that are done, and the loss."""


def distillation_loss(draft_logits: torch.Tensor, top_ids: torch.Tensor, top_log_probs: torch.Tensor) -> torch.Tensor:
    """Cross-entropy with the target's distribution, cut to its top choices, plus that with its first choice.

    Args:
        draft_logits: [..., vocabulary].
        top_ids, top_log_probs: [..., k], the target's likeliest tokens, the likeliest first.
    """
    log_draft = F.log_softmax(draft_logits.float(), -1).gather(-1, top_ids.long())
    soft = -(top_log_probs.float().softmax(-1) * log_draft).sum(-1).mean()
    return soft - log_draft[..., 0].mean()


class Optimizers:
    """Muon (Jordan et al. 2024) for the matrices inside the layers, AdamW for the rest."""

    def __init__(self, model: Any, adam_lr: float = ADAM_LR) -> None:
        named = list(model.named_parameters())
        matrices = [p for n, p in named if p.ndim == 2 and "embed" not in n and "lm_head" not in n]
        others = [p for _, p in named if not any(p is one for one in matrices)]
        self._parameters = [p for _, p in named]
        self._both = [
            torch.optim.Muon(matrices, lr=MUON_LR, weight_decay=0.01),
            torch.optim.AdamW(others, lr=adam_lr, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self._rates = [[group["lr"] for group in one.param_groups] for one in self._both]

    def step(self, loss: torch.Tensor, step: int, steps: int) -> None:
        """Do one of ``steps`` steps: a short warm-up of the rates, a plateau, a linear decay over the last half."""
        factor = min(1.0, (step + 1) / 50, 2 * (steps - step) / steps)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        for one, rates in zip(self._both, self._rates, strict=True):
            for group, rate in zip(one.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            one.step()
            one.zero_grad(set_to_none=True)

    def state(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the name and value of everything that the optimisers remember."""
        for number, one in enumerate(self._both):
            for index, entries in one.state_dict()["state"].items():
                yield from ((f"{number}/{index}/{name}", torch.as_tensor(value)) for name, value in entries.items())

    def load_state(self, saved: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take what ``state`` yielded."""
        states: list[dict[int, dict[str, torch.Tensor]]] = [{} for _ in self._both]
        for key, value in saved:
            number, index, name = key.split("/")
            states[int(number)].setdefault(int(index), {})[name] = value
        for one, state in zip(self._both, states, strict=True):
            one.load_state_dict({**one.state_dict(), "state": state})


def train(
    model: Any, optimizers: Optimizers, first: int, steps: int, loss_of: Callable[[int], torch.Tensor], on_step: OnStep
) -> None:
    """Do the steps from number ``first`` on; ``loss_of`` gets a step's number."""
    model.train()
    for step in range(first, steps):
        loss = loss_of(step)
        optimizers.step(loss, step, steps)
        on_step(step + 1, loss.item())
    model.eval()


class Trainer:
    """A draft, its optimisers, and how many steps are done.

    Raises:
        InvalidArgument: a checkpoint cannot be written.
    """

    def __init__(self, draft: Any, recipe: Recipe, folder: Path) -> None:
        self._draft = draft
        self._recipe = recipe
        self._path = folder / CHECKPOINT
        self._optimizers = Optimizers(draft)
        self.step = 0
        if self._path.exists():
            self._resume()

    def run(self, lessons: Lessons, on_step: OnStep) -> None:
        """Do the steps that are left."""
        steps, todo = self._recipe.steps, batches(lessons, self._recipe.step_tokens, self._recipe.seed, self.step)

        def on_own_step(step: int, loss: float) -> None:
            self.step = step
            on_step(step, loss)
            if step % CHECKPOINT_STEPS == 0 or step == steps:
                self._save()

        train(self._draft, self._optimizers, self.step, steps, lambda _: loss_of(self._draft, next(todo)), on_own_step)

    def _save(self) -> None:
        tensors = {"step": torch.tensor(self.step)}
        tensors |= {f"draft/{name}": value for name, value in self._draft.named_parameters()}
        tensors |= {f"optimizer/{name}": value for name, value in self._optimizers.state()}
        write_tensors(self._path, tensors)

    def _resume(self) -> None:
        saved = load_file(self._path)
        self.step = int(saved.pop("step"))
        for name, value in self._draft.named_parameters():
            value.data.copy_(saved.pop(f"draft/{name}"))
        self._optimizers.load_state((key.removeprefix("optimizer/"), value) for key, value in saved.items())


def loss_of(draft: Any, lesson: Lessons) -> torch.Tensor:
    """Return the loss of a batch, over the positions that the target wrote."""
    device, judged = draft.device, lesson.judged
    with torch.autocast(device.type, torch.bfloat16):
        hidden = draft.model(**lesson.inputs(device), use_cache=False).last_hidden_state
        # The distribution of a token is made at the position before it.
        logits = draft.lm_head(hidden[:, :-1][judged[:, 1:].to(device)])
    return distillation_loss(logits, lesson.top_ids[judged].to(device), lesson.top_log_probs[judged].to(device))


@torch.inference_mode()
def judge(draft: Any, lessons: Lessons) -> dict[str, float]:
    """Return how good a draft is on texts of the target.

    ``greedy_agreement``: how often its likeliest token is the target's, in the texts that are the target's likeliest
    tokens. ``bits_per_token``: its cross-entropy on the tokens that the target sampled, beside
    ``target_bits_per_token``, the target's own.
    """
    agreed, nats, own_nats = [], [], []
    for rows in torch.arange(len(lessons.ids)).split(JUDGED_ROWS):
        part = lessons.rows(rows)
        logits = draft(**part.inputs(draft.device), use_cache=False).logits[:, :-1]
        log_probs, ids = logits.float().log_softmax(-1).cpu(), part.ids[:, 1:].long()
        greedy = part.judged[:, 1:] & part.greedy[:, None]
        sampled = part.judged[:, 1:] & ~part.greedy[:, None]
        agreed.append(log_probs.argmax(-1)[greedy] == part.top_ids[:, 1:, 0][greedy])
        nats.append(-log_probs.gather(-1, ids[..., None])[..., 0][sampled])
        own_nats.append(-part.log_probs[:, 1:][sampled])
    return {
        "greedy_agreement": _mean(agreed),
        "bits_per_token": round(_mean(nats) / math.log(2), 4),
        "target_bits_per_token": round(_mean(own_nats) / math.log(2), 4),
    }


def _mean(parts: list[torch.Tensor]) -> float:
    return round(torch.cat(parts).float().mean().item(), 4)
