"""The benchmark's bare HuggingFace loop, seen from outside its process."""

from dataclasses import dataclass
from typing import Any, Self

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

    def __init__(self, child: Child) -> None:
        self._child = child

    @classmethod
    async def start(
        cls, model: str, *, dtype: str, device: str, threads: int, cpu: int | None = None
    ) -> Self:
        """Return once the model is loaded.

        Raises:
            ServiceUnavailable: it could not be loaded; tells the process's last words.
        """
        flags = ["--model", model, "--dtype", dtype, "--device", device, "--threads", str(threads)]
        loop = cls(await Child.start("orchestrator.hf_baseline", flags + _pinned(cpu)))
        try:
            await loop._answer()
        except BaseException:
            await loop.stop()
            raise
        return loop

    async def run(self, request: GenerationRequest) -> BareRun:
        """Decode ``request.max_tokens`` tokens, past any end-of-sequence token."""
        sampling = request.sampling
        message: dict[str, Any] = {"token_ids": request.prompt_token_ids, "max_tokens": request.max_tokens}
        message |= {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
        message |= {"seed": request.seed or 0}
        await self._child.send(message)
        answer = await self._answer()
        return BareRun(tuple(answer["token_ids"]), answer["decode_s"])

    async def stop(self) -> None:
        """End the process. Safe to call twice."""
        await self._child.stop()

    async def _answer(self) -> dict[str, Any]:
        answer = await self._child.next_event()
        if answer is None:
            code = await self._child.wait()
            raise ServiceUnavailable(f"the bare loop ended with exit code {code}:\n{self._child.last_words}")
        return answer


def _pinned(cpu: int | None) -> list[str]:
    return [] if cpu is None else ["--cpu", str(cpu)]
