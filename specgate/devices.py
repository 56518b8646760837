"""Which device a model is put on."""

import torch

from specgate.errors import InvalidArgument


def pick_device(name: str) -> torch.device:
    """Return the device that ``name`` means; "auto" is the first CUDA device where there is one, else the CPU.

    Raises:
        InvalidArgument: no such device on this machine.
    """
    if name == "auto":
        name = "cuda:0" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InvalidArgument("device", f"{name!r} is not one of auto, cpu, cuda, cuda:N") from None
    count = torch.cuda.device_count()
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and (device.index or 0) >= count):
        raise InvalidArgument("device", f"{name!r} is not here; this machine has the CPU and {count} CUDA devices")
    return device
