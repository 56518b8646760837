"""A card that is not here: Triton compiles our kernels for it and launches nothing."""

import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget

SHARED_BYTES = {80: 163 << 10, 90: 227 << 10}
"""What a block may have, by compute capability."""
_CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
_WAIT = "ACQBULK"
"""The wait for the launch before."""
_LOAD = re.compile(r"LDG\.E\.128")


class AbsentCard:
    """What Triton asks of a driver.

    Args:
        on_kernel: called with each compiled kernel's name and the bytes of shared memory that it takes.
    """

    def __init__(
        self, capability: int, on_kernel: Callable[[str, int], None] = lambda name, shared_bytes: None
    ) -> None:
        self._capability, self._on_kernel = capability, on_kernel
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
        self._on_kernel(name, shared_bytes)
        return object(), 0, 0, 0, 1024

    def launcher_cls(self, *_: Any) -> Any:
        return lambda *_: None


class MachineCode(NamedTuple):
    """What was made of a kernel.

    Attributes:
        registers: of a thread.
        stack_bytes: of a thread, for want of registers.
        early_loads: loads of 16 bytes before it waits; none where it never does.
        block_barriers: waits of a block's threads for each other.
    """

    registers: int
    stack_bytes: int
    early_loads: int
    block_barriers: int


def cuobjdump(compiled: Any, flag: str) -> str:
    """Return what NVIDIA's tool tells of a kernel that Triton compiled."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        return subprocess.run([_CUOBJDUMP, flag, file.name], capture_output=True, text=True, check=True).stdout


def machine_code(compiled: Any) -> MachineCode:
    """Return what is in the machine code of a kernel that Triton compiled."""
    usage, sass = cuobjdump(compiled, "--dump-resource-usage"), cuobjdump(compiled, "-sass")
    found = dict(re.findall(r"(REG|STACK):(\d+)", usage))
    early, wait, _ = sass.partition(_WAIT)
    early_loads = len(_LOAD.findall(early)) if wait else 0
    return MachineCode(int(found["REG"]), int(found["STACK"]), early_loads, sass.count("BAR.SYNC"))
