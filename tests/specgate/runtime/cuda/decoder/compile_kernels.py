"""Compile a draft's kernels for a card that is not here, ``80`` or ``90``; print a line of JSON on each.

A process of its own, because in the others Triton interprets.
"""

import json
import sys
from typing import Any

import torch
import triton

from specgate.runtime.cuda.decoder import launches
from specgate.runtime.cuda.decoder.buffers import num_words, unpack, workspace_for
from specgate.runtime.cuda.decoder.shape import DecoderShape, DraftTiles
from specgate.runtime.cuda.decoder.weights import StackedWeights
from tests.support.absent_card import AbsentCard, machine_code

SMOLLM2_135M = DecoderShape(576, 9, 3, 64, 1536, 30, 49152, 1e-5, 0.125, 256, 8, 8, 5)


def arguments(shape: DecoderShape, dtype: torch.dtype) -> tuple[Any, Any, Any]:
    """Return small tensors of the right formats: nothing is read."""
    some = torch.empty(16, dtype=dtype)
    batch = unpack(torch.empty(num_words(shape), dtype=torch.int64), shape, torch.int32)
    work = workspace_for(shape._replace(VOCAB=16), DraftTiles(), some.device)
    weights = StackedWeights._make([*[some] * 8, torch.empty(16)])
    return weights, batch._replace(pages=some, page_stride=1 << 20), work


def report(name: str, compiled: Any) -> None:
    print(json.dumps({"kernel": name, **machine_code(compiled)._asdict()}), flush=True)


if __name__ == "__main__":
    capability = int(sys.argv[1])
    triton.runtime.driver.set_active(AbsentCard(capability))
    shape, given = SMOLLM2_135M, arguments(SMOLLM2_135M, torch.bfloat16)
    for phase in launches.PHASES:
        report(phase, launches.launch_phase(phase, 3, *given, shape, DraftTiles(), early=capability >= 90))
