"""The benchmark's bare HuggingFace loop, seen from outside its process."""

from dataclasses import dataclass
from typing import Any

from orchestrator.child import Child
from orchestrator.request import GenerationRequest
from specgate.errors import ServiceUnavailable


@dataclass(frozen=True, slots=True)
class BareRun:
    """What one request brought; ``decode_s`` leaves the prefill and the first token out."""

    token_ids: tuple[int, ...]
    decode_s: float


class BareLoop:
    """A process that holds one model and decodes with it, one request at a time."""

    def __init__(self, model: str, *, dtype: str, device: str, threads: int, cpu: int | None = None) -> None:
        flags = ["--model", model, "--dtype", dtype, "--device", device, "--threads", str(threads)]
        self._flags = flags if cpu is None else [*flags, "--cpu", str(cpu)]
        self._child: Child | None = None

    async def start(self) -> None:
        """Return once the model is loaded.

        Raises:
            ServiceUnavailable: it could not be loaded; tells the process's last words.
        """
        self._child = await Child.start("orchestrator.hf_baseline", self._flags)
        await _answer(self._child)

    async def run(self, request: GenerationRequest) -> BareRun:
        """Decode ``request.max_tokens`` tokens, past any end-of-sequence token."""
        sampling = request.sampling
        message: dict[str, Any] = {"token_ids": request.prompt_token_ids, "max_tokens": request.max_tokens}
        message |= {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
        message |= {"seed": request.seed or 0}
        if self._child is None:
            raise ServiceUnavailable("the bare loop has not been started")
        await self._child.send(message)
        answer = await _answer(self._child)
        return BareRun(tuple(answer["token_ids"]), answer["decode_s"])

    async def stop(self) -> None:
        """End the process. Safe to call twice."""
        if self._child:
            await self._child.stop()


async def _answer(child: Child) -> dict[str, Any]:
    answer = await child.next_event()
    if answer is None:
        code = await child.wait()
        raise ServiceUnavailable(f"the bare loop ended with exit code {code}:\n{child.last_words}")
    return answer
