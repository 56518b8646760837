"""The process that holds the target while blocks of it are left out, seen from outside."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from orchestrator.local.child import Child
from orchestrator.terminal.model_options import ModelOptions
from specgate.errors import ModelLoadError, ServiceUnavailable
from specgate_lab.tune.layers.blocks import Blocks, BlockSet
from specgate_lab.tune.layers.predict import Ranks
from specgate_lab.tune.recording import RecordedText

PROGRAM = "specgate.runtime.layer_trials"


class BlockScorer:
    """Says where a target without some of its blocks would draft what the whole one wrote."""

    def __init__(self, models: ModelOptions, cpu: int | None) -> None:
        flags = {"threads": models.service.value("threads") or 1, "cpu": cpu}
        flags |= {name: models.service.value(name) for name in ("dtype", "device")}
        given = [part for name, value in flags.items() if value is not None for part in (f"--{name}", str(value))]
        self._arguments = [models.target_model or "", *given]
        self._child: Child | None = None

    async def start(self, texts: Sequence[RecordedText]) -> Blocks:
        """Return, once the model is loaded, what can be left out of it.

        Raises:
            ModelLoadError: it cannot be loaded, or its blocks are not found.
            ServiceUnavailable: the process ended.
        """
        self._child = await Child.start(PROGRAM, self._arguments)
        ready = await self._answer()
        await self._child.send({"texts": [asdict(text) for text in texts]})
        await self._answer()
        return Blocks(ready["num_layers"], ready["has_mlp_blocks"])

    async def ranks(self, skip: BlockSet, num_texts: int) -> list[Ranks]:
        """Return the places of the tokens of the first texts, by text."""
        if self._child is None:
            raise ServiceUnavailable("the process that leaves blocks out was not started")
        await self._child.send({**skip.to_object(), "num_texts": num_texts})
        found: list[Ranks] = (await self._answer())["ranks"]
        return found

    async def stop(self) -> None:
        """End the process. Safe to call twice."""
        if self._child:
            await self._child.stop()

    async def _answer(self) -> dict[str, Any]:
        answer = await self._child.next_event() if self._child else None
        if answer is None:
            code = await self._child.wait() if self._child else 0
            words = self._child.last_words if self._child else ""
            raise ServiceUnavailable(f"the process that leaves blocks out ended with exit code {code}:\n{words}")
        if answer.get("event") == "failed":
            raise ModelLoadError(answer["message"])
        return answer
