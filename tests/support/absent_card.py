"""A card that is not here: Triton compiles for it, and launches nothing."""

from typing import Any

from triton.backends.compiler import GPUTarget

SHARED_BYTES = {80: 163 << 10, 90: 227 << 10}
"""What a block may have, by compute capability."""


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
