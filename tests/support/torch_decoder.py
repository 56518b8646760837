"""A step of a draft as torch would make it: stands for our kernels where there is no Triton, number by number."""

from typing import Any

import torch
import torch.nn.functional as F

from specgate.runtime import noise
from specgate.runtime.cuda.decoder.buffers import DraftBatch, Workspace
from specgate.runtime.cuda.decoder.shape import DecoderShape, DraftTiles
from specgate.runtime.cuda.decoder.weights import StackedWeights


class TorchDecoder:
    """Drafts one token of each sequence a call.

    Attributes:
        sizes: steps and sequences of each draft that was made; nothing is there when a step is recorded.
    """

    def __init__(self) -> None:
        self.sizes: list[tuple[int, int]] = []

    def __call__(self, w: StackedWeights, b: DraftBatch, u: Workspace, s: DecoderShape, t: DraftTiles) -> None:
        step, num_sequences = map(int, b.scalars[:2])
        b.scalars[0] += 1
        if not num_sequences:
            return
        if step == 0:
            self.sizes.append((0, num_sequences))
        self.sizes[-1] = (step + 1, num_sequences)
        for sequence in range(num_sequences):
            logits = _last_logits(w, b, u, s, step, sequence)
            u.logits[step, sequence] = logits
            u.report[step, sequence] = _chosen(logits, b, step, sequence)


def _last_logits(
    w: StackedWeights, b: DraftBatch, u: Workspace, s: DecoderShape, step: int, sequence: int
) -> torch.Tensor:
    num_rows = int(b.used[sequence]) if step == 0 else 1
    length = int(b.lengths[sequence]) + step
    chosen = u.report[step - 1, sequence, 0]
    ids = b.token_ids[sequence, s.WIDTH - num_rows :].long() if step == 0 else chosen.long()[None]
    places = torch.arange(length)
    slots = b.table[sequence].long()[places // s.PAGE], places % s.PAGE
    hidden = w.embedding[ids].float()
    for layer in range(s.LAYERS):
        normed = F.rms_norm(hidden, (s.HIDDEN,), w.norms[layer, 0].float(), s.EPSILON)
        rows = (normed @ w.qkv[layer].float().T).view(num_rows, -1, s.DIM)
        rows[:, : -s.KV_HEADS] = _turned(rows[:, : -s.KV_HEADS], w.angles[length - num_rows : length])
        query, key, value = rows.split([s.HEADS, s.KV_HEADS, s.KV_HEADS], 1)
        new = slots[0][-num_rows:], slots[1][-num_rows:]
        b.pages[2 * layer][new], b.pages[2 * layer + 1][new] = key.to(b.pages.dtype), value.to(b.pages.dtype)
        keys, values = (b.pages[2 * layer + part][slots].float().transpose(0, 1) for part in (0, 1))
        seen = places[None] <= places[-num_rows:, None]
        options: dict[str, Any] = {"attn_mask": seen, "scale": s.SCALE, "enable_gqa": True}
        attended = F.scaled_dot_product_attention(query.transpose(0, 1)[None], keys[None], values[None], **options)
        hidden = hidden + attended[0].transpose(0, 1).flatten(1) @ w.out[layer].float().T
        normed = F.rms_norm(hidden, (s.HIDDEN,), w.norms[layer, 1].float(), s.EPSILON)
        gate, up = (normed @ w.gate_up[layer].float().T).chunk(2, -1)
        hidden = hidden + (F.silu(gate) * up) @ w.down[layer].float().T
    return F.rms_norm(hidden[-1], (s.HIDDEN,), w.last_norm.float(), s.EPSILON) @ w.head.float().T


def _turned(rows: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    (cos, sin), (one, other) = angles[:, None].unbind(2), rows.chunk(2, -1)
    return torch.cat([one * cos - other * sin, other * cos + one * sin], -1)


def _chosen(logits: torch.Tensor, b: DraftBatch, step: int, sequence: int) -> torch.Tensor:
    logits = logits[: int(b.scalars[2])].double()
    if temperature := float(b.scalars[3:].view(torch.float32)):
        keys = [int(b.keys[step, sequence])]
        logits = logits / temperature + noise.gumbel(keys, torch.arange(len(logits)))[0]
    best, token_id = logits.max(-1)
    return torch.stack([token_id.float(), best.float()])
