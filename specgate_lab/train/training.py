"""Training a draft, so that it can be killed and resume, and judging it on texts that it has not seen."""

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from specgate_lab.train.lessons import Lessons, batches, write_tensors
from specgate_lab.train.recipe import Recipe
from specgate_lab.train.student import Student

MUON_LR, ADAM_LR = 0.05, 0.004
"""Between the better ones of 0.004 (far behind), 0.03, 0.08 and 0.2 after 80 steps on other texts of SmolLM2-135M."""
WARM_UP = 50
CHECK_STEPS = 100
PATIENCE, LEAST_RISE = 3, 0.003
"""So many checks without so much more agreement, and the rates fall."""
CHECKPOINT = "checkpoint.safetensors"
JUDGED_ROWS = 8
"""Rows of one forward that judges: their logits fit in memory."""


def distillation_loss(logits: torch.Tensor, places: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
    """Cross-entropy with the target's distribution, cut to its top choices, plus that with its first choice.

    Args:
        logits: [positions, head].
        places, probs: [positions, k], the target's likeliest tokens as rows of the head, the likeliest first, with
            probability 0 where the head has not the token.
    """
    log_draft = F.log_softmax(logits, -1).gather(-1, places)
    first = log_draft[:, 0] * (probs[:, 0] > 0)
    return -(probs * log_draft).sum(-1).mean() - first.mean()


class Optimizers:
    """Muon (Jordan et al. 2024) for the matrices inside the layers, AdamW for the rest."""

    def __init__(self, model: Any, muon_lr: float = MUON_LR, adam_lr: float = ADAM_LR) -> None:
        named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
        matrices = [p for n, p in named if p.ndim == 2 and "embed" not in n and "lm_head" not in n]
        others = [p for _, p in named if not any(p is one for one in matrices)]
        self._parameters = [p for _, p in named]
        self._both: list[torch.optim.Optimizer] = [torch.optim.Muon(matrices, lr=muon_lr, weight_decay=0.01)]
        # Norms of some models have no weights.
        if others:
            self._both.append(torch.optim.AdamW(others, lr=adam_lr, betas=(0.9, 0.95), weight_decay=0.0))
        self._rates = [[group["lr"] for group in one.param_groups] for one in self._both]

    def step(self, loss: torch.Tensor, factor: float) -> None:
        """Do one step, at this share of the rates."""
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


class Judgement(NamedTuple):
    """What a draft is worth, on texts of the target.

    ``greedy_agreement``: how often its likeliest token is the target's, where a text is the target's likeliest tokens;
    ``agrees``: where, text by text. ``acceptance``: the mean probability that rejection sampling keeps a token
    that it draws, in the texts that the target drew, at temperature 1.
    """

    greedy_agreement: float
    acceptance: float
    agrees: list[list[bool]]


class Check(NamedTuple):
    """A check on the way."""

    step: int
    seconds: float
    judgement: Judgement


class Trainer:
    """A draft, its optimisers, how many steps are done, and how its agreement rose.

    Raises:
        InvalidArgument: a checkpoint cannot be written.
    """

    def __init__(self, student: Student, recipe: Recipe, folder: Path) -> None:
        self._student, self._recipe = student, recipe
        self._path = folder / CHECKPOINT
        self._optimizers = Optimizers(student.draft)
        self.step = 0
        self._rises: list[float] = []
        """Greedy agreement at each check."""
        self._seconds = 0.0
        self._decay_from = recipe.steps // 2
        if self._path.exists():
            self._resume()

    def run(self, lessons: Lessons, judged: Lessons, on_step: Callable[[int, float], None]) -> Iterator[Check]:
        """Do the steps that are left, and yield a check after every ``CHECK_STEPS`` of them."""
        todo = batches(lessons, self._recipe.step_tokens, self._recipe.seed, self.step)
        begin_s = time.perf_counter() - self._seconds
        while self.step < self.last_step:
            self._student.draft.train()
            with self._autocast():
                loss = loss_of(self._student, next(todo))
            self._optimizers.step(loss, rate_factor(self.step, self._decay_from, self.last_step))
            self.step += 1
            on_step(self.step, loss.item())
            if self.step % CHECK_STEPS == 0 or self.step == self.last_step:
                self._seconds = time.perf_counter() - begin_s
                yield self._check(judged)
                self._save()

    @property
    def last_step(self) -> int:
        """Rates fall for as long as they stood."""
        return min(2 * self._decay_from + self._recipe.steps % 2, self._recipe.steps)

    def _check(self, judged: Lessons) -> Check:
        # As it learns; in the end it is judged in float32.
        with self._autocast():
            judgement = judge(self._student, judged)
        self._rises.append(judgement.greedy_agreement)
        before, recent = self._rises[:-PATIENCE], self._rises[-PATIENCE:]
        if self.step < self._decay_from and before and max(recent) < max(before) + LEAST_RISE:
            self._decay_from = self.step
        return Check(self.step, self._seconds, judgement)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._student.draft.device.type, torch.bfloat16)

    def _save(self) -> None:
        numbers = torch.tensor([self.step, self._decay_from, self._seconds, *self._rises], dtype=torch.float64)
        tensors = {"progress": numbers}
        tensors |= {f"draft/{name}": value for name, value in self._learning()}
        tensors |= {f"optimizer/{name}": value for name, value in self._optimizers.state()}
        write_tensors(self._path, tensors)

    def _resume(self) -> None:
        saved = load_file(self._path)
        step, decay_from, self._seconds, *self._rises = saved.pop("progress").tolist()
        self.step, self._decay_from = int(step), int(decay_from)
        for name, value in self._learning():
            value.data.copy_(saved.pop(f"draft/{name}"))
        self._optimizers.load_state((key.removeprefix("optimizer/"), value) for key, value in saved.items())

    def _learning(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, one) for name, one in self._student.draft.named_parameters() if one.requires_grad)


def rate_factor(step: int, decay_from: int, last_step: int) -> float:
    """Return the share of the rates at a step: a short warm-up, a plateau, a linear fall."""
    falling = (last_step - step) / max(last_step - decay_from, 1)
    return min(1.0, (step + 1) / WARM_UP, falling)


def loss_of(student: Student, lessons: Lessons) -> torch.Tensor:
    """Return the loss of a batch, over the positions that the target wrote."""
    return distillation_loss(student.logits(lessons), *student.choices(lessons))


@torch.inference_mode()
def judge(student: Student, lessons: Lessons) -> Judgement:
    """Return what a draft is worth on texts of the target, with the head that it has."""
    student.draft.eval()
    agrees: list[list[bool]] = []
    kept: list[torch.Tensor] = []
    for rows in torch.arange(len(lessons.ids)).split(JUDGED_ROWS):
        part = lessons.rows(rows)
        logits, (places, probs) = student.logits(part), student.choices(part)
        hits = (logits.argmax(-1) == places[:, 0]) & (probs[:, 0] > 0)
        both = torch.minimum(logits.softmax(-1).gather(-1, places), probs).sum(-1)
        lengths = part.judged.sum(-1).tolist()
        for is_greedy, hit, one in zip(part.greedy.tolist(), hits.split(lengths), both.split(lengths), strict=True):
            if is_greedy:
                agrees.append(hit.tolist())
            else:
                kept.append(one.cpu())
    greedy = [hit for one in agrees for hit in one]
    acceptance = torch.cat(kept).mean().item() if kept else 0.0
    return Judgement(round(sum(greedy) / max(len(greedy), 1), 4), round(acceptance, 4), agrees)
