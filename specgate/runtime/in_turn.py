"""Attention of sequences that lie in a page each, one after the other; of several without Python between them.

torch's attention for a lone row takes 33 microseconds a layer of the bundled target on a core of an AMD EPYC. To write
its key and value and to cut the page to length takes 20 more, most of it the interpreter's. So where several sequences
share a forward this function is compiled by ``torch.jit.script``: eight lone rows take 14.6 instead of 16.2 ms, sixteen
24.7 instead of 28.4. The operations are the same, and so are the numbers. (torch calls that deprecated. Where it is
gone, the function runs as it is written.)

In bfloat16 torch may take longer for a lone row than for two (100 against 45 microseconds there, behind 200 tokens, and
530 against 170 behind 1,000). Where that is so, a lone row brings a copy of itself along.
"""

import logging
import threading
import time
import warnings
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F

GAIN = 1.2
"""How much faster two rows must be than a lone one."""
REPEATS = 9
TELLING = threading.Lock()
"""Held while warnings are caught, which is done for all of a process."""
_log = logging.getLogger(__name__)


Attend = Callable[..., torch.Tensor]
"""``attend_in_turn``, or what torch made of it."""


class Place(NamedTuple):
    """Where a sequence's rows are: from ``first_row`` of a batch on, at ``start`` and after in ``page``."""

    first_row: int
    num_rows: int
    start: int
    page: int


def attend_in_turn(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    places: list[tuple[int, int, int, int]],
    masks: list[torch.Tensor | None],
    scale: float | None,
    is_grouped: bool,
    has_twins: bool,
) -> torch.Tensor:
    """Write keys and values into the pages, and attend.

    Args:
        query, key, value: [1, heads, total_rows, head_dim]; key and value have fewer heads where it ``is_grouped``.
        key_pages, value_pages: [num_pages, kv_heads, page_size, head_dim].
        places: ``Place`` of each sequence, in the order of its rows.
        masks: of each, additive, [num_rows, start + num_rows]; None: its rows see everything.
        has_twins: a lone row without a mask is run together with a copy of itself.

    Returns:
        [1, heads, total_rows, head_dim].
    """
    outputs: list[torch.Tensor] = []
    for index in range(len(places)):
        first_row, num_rows, start, page = places[index]
        rows, new_keys, new_values, mask = query, key, value, masks[index]
        # narrow costs a third of what an index in brackets does, and is called for each layer and sequence.
        if len(places) > 1:
            rows = query.narrow(2, first_row, num_rows)
            new_keys, new_values = key.narrow(2, first_row, num_rows), value.narrow(2, first_row, num_rows)
        keys, values = key_pages.narrow(0, page, 1), value_pages.narrow(0, page, 1)
        keys.narrow(2, start, num_rows).copy_(new_keys)
        values.narrow(2, start, num_rows).copy_(new_values)
        keys, values = keys.narrow(2, 0, start + num_rows), values.narrow(2, 0, start + num_rows)
        is_twin = has_twins and num_rows == 1 and mask is None
        if is_twin:
            rows = torch.cat((rows, rows), 2)
        out = F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=scale, enable_gqa=is_grouped)
        outputs.append(out.narrow(2, 0, 1) if is_twin else out)
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2)


@cache
def compiled() -> Attend:
    """Return ``attend_in_turn``, compiled where torch can."""
    try:
        with TELLING, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            script: Attend = torch.jit.script(attend_in_turn)
            return script
    # Whatever keeps it from being compiled, it runs.
    except Exception as error:
        _log.warning("attention is not compiled: %s: %s", type(error).__name__, str(error).partition("\n")[0])
        return attend_in_turn


def lone_row_seconds(num_rows: int, dtype: torch.dtype) -> float:
    """Return what attention takes on the CPU for a lone row, or with ``num_rows`` of 2 for it and its copy."""
    query, keys = torch.ones(1, 4, num_rows, 64, dtype=dtype), torch.ones(1, 4, 256, 64, dtype=dtype)
    start_s = time.perf_counter()
    F.scaled_dot_product_attention(query, keys, keys)
    return time.perf_counter() - start_s


@torch.inference_mode()
def twins_are_faster(
    device: torch.device, dtype: torch.dtype, timer: Callable[[int, torch.dtype], float] = lone_row_seconds
) -> bool:
    """Return whether a lone row is best run with a copy of itself. Never in float32, which is held to the bit."""
    if device.type != "cpu" or dtype is not torch.bfloat16:
        return False
    turns = [(timer(1, dtype), timer(2, dtype)) for _ in range(REPEATS)]
    lone_s, twin_s = map(min, zip(*turns, strict=True))
    return twin_s * GAIN < lone_s
