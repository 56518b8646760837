"""Compile our Triton kernels for a card that is not here, ``80`` or ``90``; print each one's name and shared memory.

They are called as a model calls them, by a driver that launches nothing. A process of its own, because in the others
Triton interprets.
"""

import itertools
import sys

import torch
import triton

from specgate.runtime.attention.paged_triton import TritonAttention
from specgate.runtime.cuda import choosing, elementwise
from tests.specgate.runtime.attention.test_paged_triton import CASES, DEVICE, both
from tests.support.absent_card import AbsentCard

IN_FLOAT32 = ("ragged", "a prompt")


def compile_attention() -> None:
    for case in CASES.values():
        both(case, torch.bfloat16, kernel=TritonAttention(DEVICE))
    for name in IN_FLOAT32:
        both(CASES[name], torch.float32, kernel=TritonAttention(DEVICE))


def compile_elementwise() -> None:
    rows = torch.ones(1, 4, 3, 64, dtype=torch.bfloat16, device=DEVICE)
    pages = torch.ones(2, 16, 4, 64, dtype=torch.bfloat16, device=DEVICE)
    elementwise.rotated(rows, rows, rows[:, 0], rows[:, 0])
    elementwise.silu_times(rows)
    for width in (576, 2048, 8192):
        hidden = torch.ones(1, 3, width, dtype=torch.bfloat16, device=DEVICE)
        elementwise.add_rms_norm(hidden, hidden, hidden[0, 0], 1e-5)
    elementwise.store(rows, rows, pages, pages, torch.arange(3, device=DEVICE))


def compile_choosing() -> None:
    for dtype in (torch.bfloat16, torch.float32):
        logits = torch.ones(2, 9000, dtype=dtype, device=DEVICE)
        for temperature, with_probs in itertools.product((0.0, 1.0), (False, True)):
            choosing.choose(logits, [1, 2] if temperature else [], temperature, with_probs)


if __name__ == "__main__":
    triton.runtime.driver.set_active(AbsentCard(int(sys.argv[1]), lambda *kernel: print(*kernel, flush=True)))
    compile_attention()
    compile_elementwise()
    compile_choosing()
