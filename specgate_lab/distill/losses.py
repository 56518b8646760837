"""What a draft minimises, and with which optimisers."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F


def distillation_loss(draft_logits: torch.Tensor, top_ids: torch.Tensor, top_log_probs: torch.Tensor) -> torch.Tensor:
    """Cross-entropy with the target's distribution, cut to its top choices, plus that with its first choice.

    Args:
        draft_logits: [..., vocabulary].
        top_ids, top_log_probs: [..., k], the target's likeliest tokens, the likeliest first.
    """
    log_draft = F.log_softmax(draft_logits.float(), -1).gather(-1, top_ids.long())
    soft = -(top_log_probs.float().softmax(-1) * log_draft).sum(-1).mean()
    return soft - log_draft[..., 0].mean()


def optimizers_of(
    parameters: Iterable[tuple[str, torch.nn.Parameter]], muon_lr: float, adam_lr: float
) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024) for the matrices inside the layers, AdamW for the rest."""
    named = list(parameters)
    matrices = [p for n, p in named if p.ndim == 2 and "embed" not in n and "lm_head" not in n]
    others = [p for n, p in named if not any(p is one for one in matrices)]
    return [
        torch.optim.Muon(matrices, lr=muon_lr, weight_decay=0.01),
        torch.optim.AdamW(others, lr=adam_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def learning_rate_factor(step: int, steps: int) -> float:
    """A short warm-up, a plateau, a linear decay over the last half."""
    return min(1.0, (step + 1) / 50, 2 * (steps - step) / steps)
