"""Is the fast path there? Versions, the card, its bandwidth, which attention serves and why, how many graphs."""

from argparse import Namespace
from typing import Any

import measure_forward as forwards
import torch

from gpu_day_steps.sizes import sizes
from gpu_day_steps.step import CheckFailed, Context
from specgate.runtime.engine.serving_path import why_slow
from specgate_lab.provenance import provenance

SMALL = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 4096,
}


def machine(context: Context) -> str:
    """Fail unless a small model is served by fused attention, with graphs recorded."""
    device = torch.device(context.where.device)
    context.row(**provenance()["versions"], cuda=torch.version.cuda)
    context.row(**_card(device))
    bandwidth = forwards.copy_bandwidth(device, 1 << 24 if context.where.dry else forwards.COPY_BYTES)
    context.row(copy_gb_per_s=bandwidth / 1e9)
    runner = forwards.serving_runner(
        forwards.random_model("small", SMALL, device, getattr(torch, context.where.dtype)), options(context)
    )
    context.row(attention=runner.kernel.name, why=runner.kernel.why, graphs=len(runner.buckets))
    told = f"attention by {runner.kernel.name}, {len(runner.buckets)} graphs, {bandwidth / 1e9:.0f} GB/s"
    if context.where.dry:
        return f"{told}; dry: not checked"
    if slow := why_slow(runner, "auto", cuda_graphs=True):
        raise CheckFailed(slow)
    return told


def options(context: Context) -> Namespace:
    """Return the flags of ``measure_forward`` that fit this day."""
    of = sizes(context)
    return Namespace(tiny=context.where.dry, attention="auto", context=of.context, repeats=of.repeats)


def _card(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {"card": "none"}
    card = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    return {
        "card": card.name,
        "capability": f"{card.major}.{card.minor}",
        "multiprocessors": card.multi_processor_count,
        "free_gib": free / 2**30,
        "total_gib": total / 2**30,
    }
