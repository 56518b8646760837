"""How the benchmark's HuggingFace baselines load a model: as anybody would, from safetensors alone."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def pick_device(device: str) -> "torch.device":
    """Return the device that ``device`` names; "auto" is a GPU where there is one."""
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


def load_model(model: str, dtype: str, device: "torch.device") -> Any:
    """Return the causal language model in the folder or hub id ``model``, ready to decode. No code of its own runs.

    ``dtype`` is what the services take, so "auto" too means what it means there.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from specgate.types import dtype_on

    logging.disable_progress_bar()
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        model, dtype=getattr(torch, dtype_on(dtype, device.type)), use_safetensors=True, trust_remote_code=False
    )
    return loaded.to(device).eval()
