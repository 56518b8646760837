"""How good a draft is: on texts of the target that it has not seen."""

import math
from typing import Any

import torch

from specgate_lab.distill.lessons import Lessons

ROWS_AT_A_TIME = 8


@torch.inference_mode()
def judge(draft: Any, lessons: Lessons) -> dict[str, float]:
    """Return what the draft says of texts by the target.

    ``greedy_agreement``: how often its likeliest token is the target's, in the texts that are the target's likeliest
    tokens. ``bits_per_token``: its cross-entropy on the tokens that the target sampled, beside
    ``target_bits_per_token``, the target's own.
    """
    agreed, nats, own_nats = [], [], []
    for rows in torch.arange(len(lessons.ids)).split(ROWS_AT_A_TIME):
        part = lessons.rows(rows)
        mask = part.attention_mask
        padding = {} if mask is None else {"attention_mask": mask.to(draft.device)}
        logits = draft(input_ids=part.ids.long().to(draft.device), use_cache=False, **padding).logits[:, :-1]
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
