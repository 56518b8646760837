"""Compile our Triton kernels for a card that is not here, ``80`` or ``90``; print each one's name and shared memory.

They are called as a model calls them, by a driver that launches nothing. A process of its own, because in the others
Triton interprets.
"""

import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

from specgate.runtime.attention.paged_triton import TritonAttention
from specgate.runtime.cuda import elementwise
from tests.specgate.runtime.attention.test_paged_triton import CASES, DEVICE, both

SHARED_BYTES = {80: 163 << 10, 90: 227 << 10}
"""What a block may have, by compute capability."""
IN_FLOAT32 = ("ragged", "a prompt")


class AbsentCard:
    """What Triton asks of a driver."""

    def __init__(self, capability: int) -> None:
        self._capability = capability
        self.utils = self

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        """Triton raises OutOfResources where a kernel needs more."""
        return {"max_shared_mem": SHARED_BYTES[self._capability]}

    def load_binary(self, name: str, binary: bytes, shared_bytes: int, device: int) -> tuple[Any, int, int, int, int]:
        assert binary.startswith(b"\x7fELF")
        print(name, shared_bytes, flush=True)
        return object(), 0, 0, 0, 1024

    def launcher_cls(self, *_: Any) -> Any:
        return lambda *_: None


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


if __name__ == "__main__":
    triton.runtime.driver.set_active(AbsentCard(int(sys.argv[1])))
    compile_attention()
    compile_elementwise()
