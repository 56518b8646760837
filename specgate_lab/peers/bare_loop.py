"""HuggingFace's loop, or llama.cpp, in a process of its own, from the outside."""

from typing import Any, Self

from orchestrator.decode.request import GenerationRequest
from orchestrator.local.child import Child
from orchestrator.terminal.model_options import ModelOptions
from specgate.errors import ServiceUnavailable
from specgate_lab.experiment import Sample


class BareLoopProcess:
    """A process that holds one model and decodes with it, one request at a time.

    With an ``assistant`` it also decodes by the library's assisted generation; ``no_assistant`` says, once it is
    started, why it cannot, and is empty where it can; ``device`` is where the model then is. ``module`` is what runs.
    """

    def __init__(
        self,
        model: str,
        *,
        dtype: str,
        device: str,
        threads: int,
        cpu: int | None = None,
        assistant: str | None = None,
        module: str = "specgate_lab.peers.hf_baseline",
    ) -> None:
        self._module = module
        self._flags = ["--model", model, "--dtype", dtype, "--device", device, "--threads", str(threads)]
        self._flags += [] if cpu is None else ["--cpu", str(cpu)]
        self._flags += [] if assistant is None else ["--assistant", assistant]
        self._child: Child | None = None
        self.has_assistant = assistant is not None
        self.no_assistant = ""
        self.device = ""

    @classmethod
    def like_services(
        cls,
        models: ModelOptions,
        model: str,
        threads: int | None = None,
        cpu: int | None = None,
        assistant: str | None = None,
        **more: str,
    ) -> Self:
        """Return a model's loop with the number format, the device and, by default, the threads of the services."""
        return cls(
            model,
            dtype=models.service.value("dtype"),
            device=models.service.value("device"),
            threads=threads or models.service.value("threads"),
            cpu=cpu,
            assistant=assistant,
            **more,
        )

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Return once the model is loaded.

        Raises:
            ServiceUnavailable: it could not be loaded; with the process's last words.
        """
        self._child = await Child.start(self._module, self._flags)
        ready = await answer_of(self._child, "the bare loop")
        self.no_assistant, self.device = ready["no_assistant"], ready["device"]
        self.has_assistant = self.has_assistant and not self.no_assistant

    async def run(self, request: GenerationRequest, schedule: str | None = None) -> Sample:
        """Decode ``request.max_tokens`` tokens, past any end-of-sequence token.

        With a ``schedule`` of ``hf_assisted.SCHEDULES`` the assistant drafts, with ``LOOKUP`` prompt lookup does.
        """
        sampling = request.sampling
        message: dict[str, Any] = {"token_ids": request.prompt_token_ids, "max_tokens": request.max_tokens}
        message |= {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
        message |= {"seed": request.seed or 0}
        message |= {} if schedule is None else {"schedule": schedule}
        if self._child is None:
            raise ServiceUnavailable("the bare loop has not been started")
        await self._child.send(message)
        answer = await answer_of(self._child, "the bare loop")
        token_ids = tuple(answer["token_ids"])
        return Sample(
            len(token_ids) - answer["num_first"], answer["decode_s"], token_ids, first_s=answer.get("first_s")
        )

    async def stop(self) -> None:
        """End the process. Safe to call twice."""
        if self._child:
            await self._child.stop()


async def answer_of(child: Child, name: str) -> dict[str, Any]:
    """Return what a child says next. Raises ServiceUnavailable, with its name and last words, where it has ended."""
    answer = await child.next_event()
    if answer is None:
        code = await child.wait()
        raise ServiceUnavailable(f"{name} ended with exit code {code}:\n{child.last_words}")
    return answer
