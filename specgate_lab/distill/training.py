"""Training a draft, so that it can be killed and go on where it was."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from specgate_lab.distill.files import write_tensors
from specgate_lab.distill.lessons import Lessons, batches
from specgate_lab.distill.losses import distillation_loss, learning_rate_factor, optimizers_of
from specgate_lab.distill.recipe import Recipe

MUON_LR, ADAM_LR = 0.02, 0.006
CHECKPOINT_STEPS = 100
CHECKPOINT = "checkpoint.safetensors"

OnStep = Callable[[int, float], None]
"""Called with the number of steps that are done, and the loss."""


class Trainer:
    """A draft, its optimisers, and how far they are.

    Raises:
        InvalidArgument: a checkpoint cannot be written.
    """

    def __init__(self, draft: Any, recipe: Recipe, folder: Path) -> None:
        self._draft = draft
        self._recipe = recipe
        self._path = folder / CHECKPOINT
        self._optimizers = optimizers_of(draft.named_parameters(), MUON_LR, ADAM_LR)
        self._rates = [[group["lr"] for group in one.param_groups] for one in self._optimizers]
        self.step = 0
        if self._path.exists():
            self._resume()

    def run(self, lessons: Lessons, on_step: OnStep) -> None:
        """Do the steps that are left."""
        recipe, draft = self._recipe, self._draft
        draft.train()
        for lesson in batches(lessons, recipe.step_tokens, recipe.seed, self.step):
            if self.step >= recipe.steps:
                break
            self._set_rates()
            loss = loss_of(draft, lesson)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
            for one in self._optimizers:
                one.step()
                one.zero_grad(set_to_none=True)
            self.step += 1
            on_step(self.step, loss.item())
            if self.step % CHECKPOINT_STEPS == 0 or self.step == recipe.steps:
                self._save()
        draft.eval()

    def _set_rates(self) -> None:
        factor = learning_rate_factor(self.step, self._recipe.steps)
        for one, rates in zip(self._optimizers, self._rates, strict=True):
            for group, rate in zip(one.param_groups, rates, strict=True):
                group["lr"] = rate * factor

    def _save(self) -> None:
        tensors = {"step": torch.tensor(self.step)}
        tensors |= {f"draft/{name}": value for name, value in self._draft.named_parameters()}
        for number, index, name, value in self._state():
            tensors[f"optimizer/{number}/{index}/{name}"] = torch.as_tensor(value)
        write_tensors(self._path, tensors)

    def _resume(self) -> None:
        saved = load_file(self._path)
        self.step = int(saved.pop("step"))
        for name, value in self._draft.named_parameters():
            value.data.copy_(saved.pop(f"draft/{name}"))
        states: list[dict[int, dict[str, torch.Tensor]]] = [{} for _ in self._optimizers]
        for key, value in saved.items():
            _, number, index, name = key.split("/")
            states[int(number)].setdefault(int(index), {})[name] = value
        for one, state in zip(self._optimizers, states, strict=True):
            one.load_state_dict({**one.state_dict(), "state": state})

    def _state(self) -> Iterator[tuple[int, int, str, Any]]:
        for number, one in enumerate(self._optimizers):
            for index, entries in one.state_dict()["state"].items():
                yield from ((number, index, name, value) for name, value in entries.items())


def loss_of(draft: Any, lesson: Lessons) -> torch.Tensor:
    """Return the loss of a batch, over the positions that the target wrote."""
    device, mask, judged = draft.device, lesson.attention_mask, lesson.judged
    padding = {} if mask is None else {"attention_mask": mask.to(device)}
    with torch.autocast(device.type, torch.bfloat16):
        hidden = draft.model(input_ids=lesson.ids.long().to(device), use_cache=False, **padding).last_hidden_state
        # What is said of a token is said at the one before it.
        logits = draft.lm_head(hidden[:, :-1][judged[:, 1:].to(device)])
    return distillation_loss(logits, lesson.top_ids[judged].to(device), lesson.top_log_probs[judged].to(device))
