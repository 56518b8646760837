"""How many tokens the KV pages may hold, by the memory that is free once the weights are there."""

import torch

from specgate.errors import ResourceExhausted
from specgate.memory import available_bytes
from specgate.runtime.engine.model_runner import ModelRunner

CUDA_SHARE = 0.8
"""Of a card's memory that is free and ours; the rest is for activations and for the allocator's gaps."""
CPU_SHARE = 0.25
"""Of a machine's free memory, where draft, target and others live side by side."""
COLD_FACTOR = 2
"""For every session at its longest, so much again: what is freed stays to be shared."""


def fitting_kv_tokens(runner: ModelRunner, max_sessions: int, memory_share: float = 1.0) -> int:
    """Return how many tokens to make pages for. The runner has run at least one forward.

    Args:
        memory_share: of a card's memory, what is for this process. Free memory alone is not enough: another process
            that loads at the same time counts on the same bytes.

    Raises:
        ResourceExhausted: not even one page fits.
    """
    wanted = COLD_FACTOR * max_sessions * runner.loaded.context_length
    spare_bytes = _spare_bytes(runner.device, memory_share)
    fitting = int(spare_bytes / runner.kv_bytes_a_token)
    if fitting < runner.pool.page_size:
        need = runner.kv_bytes_a_token * runner.pool.page_size
        of_share = f" of the memory_share of {memory_share:g}" if memory_share < 1 else ""
        raise ResourceExhausted(f"a KV page takes {need} bytes, and {max(0.0, spare_bytes):.0f} are to spare{of_share}")
    return min(wanted, fitting)


def _spare_bytes(device: torch.device, memory_share: float) -> float:
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return CUDA_SHARE * min(free, memory_share * total - torch.cuda.memory_reserved(device))
    return CPU_SHARE * available_bytes()
