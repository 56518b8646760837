"""How long services take to start, cold and with their kernels compiled, and what then serves: all side by side."""

import asyncio
import time

from gpu_day_steps.serving import service, started
from gpu_day_steps.sizes import MIDDLE, draft_name, planted_pair, sizes
from gpu_day_steps.step import Context


def twice(context: Context) -> str:
    """Return the seconds of both starts. Kernels that the first one compiles are kept on disk, for all that follows."""
    cold_s, warm_s = (asyncio.run(_start(context, what)) for what in ("cold", "warm"))
    return f"cold {cold_s:.0f} s, warm {warm_s:.0f} s"


async def _start(context: Context, what: str) -> float:
    folder, names = planted_pair(context), [draft_name(MIDDLE), draft_name(MIDDLE, thin=True)]
    services = {"target": service(context, "verifier", str(folder / "target"), max_sessions=2)}
    services |= {name: service(context, "drafter", str(folder / name), max_sessions=2) for name in names}
    start_s = time.perf_counter()
    async with started(context, services):
        seconds = time.perf_counter() - start_s
    context.row(start=what, seconds=round(seconds, 1), layers=sizes(context).draft["num_hidden_layers"])
    return seconds
