"""How many tokens the KV pages may hold, by the memory that is free once the weights are there."""

import os
from pathlib import Path

import torch

from specgate.errors import ResourceExhausted
from specgate.runtime.model_runner import ModelRunner

CUDA_SHARE = 0.8
"""Of a card's free memory; the rest is for activations and for the allocator's gaps."""
CPU_SHARE = 0.25
"""Of a machine's free memory, where draft, target and others live side by side."""
COLD_FACTOR = 2
"""For every session at its longest, so much again: what is freed stays to be shared."""
_MEMINFO = Path("/proc/meminfo")


def fitting_kv_tokens(runner: ModelRunner, max_sessions: int) -> int:
    """Return how many tokens to make pages for. The runner has run at least one forward.

    Raises:
        ResourceExhausted: not even one page fits.
    """
    wanted = COLD_FACTOR * max_sessions * runner.loaded.context_length
    fitting = int(_spare_bytes(runner.device) / runner.kv_bytes_a_token)
    if fitting < runner.pool.page_size:
        need = runner.kv_bytes_a_token * runner.pool.page_size
        raise ResourceExhausted(f"a KV page takes {need} bytes, and {_spare_bytes(runner.device):.0f} are to spare")
    return min(wanted, fitting)


def _spare_bytes(device: torch.device) -> float:
    if device.type == "cuda":
        return CUDA_SHARE * torch.cuda.mem_get_info(device)[0]
    return CPU_SHARE * _available_bytes()


def _available_bytes() -> int:
    if _MEMINFO.exists():
        for line in _MEMINFO.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
