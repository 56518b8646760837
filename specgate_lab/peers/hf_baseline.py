"""HuggingFace without us, in a process of its own: what the benchmark is compared with.

One JSON object a line on standard input, ``{"token_ids": [...], "max_tokens": N}`` with sampling parameters where
they are wanted, and one answer a line, ``{"token_ids": [...], "num_first": ..., "ttft_s": ..., "decode_s": ...}``:
``num_first`` tokens came after ``ttft_s``, the others in the ``decode_s`` that followed. The loop is the model, its KV
cache and the choice of a token, nothing else: what a careful person writes by hand. A request with a ``schedule`` is
for the library's own speculation: "prompt-lookup", or assisted generation with the model of ``--assistant``.
"""

import argparse
import inspect
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from specgate_lab.peers.hf_assisted import LOOKUP, LookupLoop
from specgate_lab.peers.hf_loading import load_model, pick_device

if TYPE_CHECKING:
    import torch

    from specgate_lab.peers.hf_assisted import AssistedLoop


def main() -> None:
    """Load the models, say ``{"event": "ready"}``, then answer requests until standard input ends.

    An assistant that the library cannot use is no error; ``ready`` tells under ``no_assistant`` why it is not.
    """
    arguments = _parse_arguments()
    if arguments.cpu is not None:
        # Threads inherit the affinity of the one that makes them, so this comes before torch.
        os.sched_setaffinity(0, {arguments.cpu})
    loop = BareLoop(arguments.model, arguments.dtype, arguments.device, arguments.threads)
    assisted, problem = _assisted(loop, arguments) if arguments.assistant else (None, "")
    _answer({"event": "ready", "device": str(loop.device), "no_assistant": problem})
    lookup = LookupLoop(loop.model, loop.device)
    for line in sys.stdin:
        request = json.loads(line)
        if request.get("schedule") == LOOKUP:
            _answer(lookup.run(**{name: value for name, value in request.items() if name != "schedule"}))
        else:
            _answer(assisted.run(**request) if assisted and "schedule" in request else loop.run(**request))


def _assisted(loop: "BareLoop", arguments: argparse.Namespace) -> "tuple[AssistedLoop | None, str]":
    """Return the assisted loop, or None and why there is none."""
    from specgate_lab.peers.hf_assisted import AssistedLoop

    try:
        return AssistedLoop(loop.model, arguments.assistant, arguments.dtype, loop.device), ""
    # Which targets and assistants go together only the library knows, and it has no class for what it refuses.
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m specgate_lab.peers.hf_baseline", description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--assistant")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu", type=int)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


def _answer(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


class BareLoop:
    """One model, and ``model(input_ids, past_key_values)`` until enough tokens are there."""

    def __init__(self, model: str, dtype: str, device: str, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self.device = pick_device(device)
        self.model = load_model(model, dtype, self.device)
        parameters = inspect.signature(self.model.forward).parameters
        self._keep_last = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}

    def run(
        self,
        token_ids: list[int],
        max_tokens: int,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> dict[str, Any]:
        """Emit ``max_tokens`` tokens, past any end-of-sequence token; the first one's time is ``ttft_s``."""
        import torch

        generator = torch.Generator(self.device).manual_seed(seed % 2**63)
        chosen: list[int] = []
        with torch.inference_mode():
            start = time.perf_counter()
            cache, step = None, token_ids
            first_at = start
            while len(chosen) < max_tokens:
                logits, cache = self._forward(step, cache)
                step = [_choose(logits, temperature, top_k, top_p, generator)]
                chosen += step
                first_at = first_at if len(chosen) > 1 else time.perf_counter()
            end = time.perf_counter()
        return {"token_ids": chosen, "num_first": 1, "ttft_s": first_at - start, "decode_s": end - first_at}

    def _forward(self, token_ids: list[int], cache: Any) -> tuple["torch.Tensor", Any]:
        import torch

        step = torch.tensor([token_ids], device=self.device)
        out = self.model(input_ids=step, past_key_values=cache, use_cache=True, **self._keep_last)
        return out.logits[0, -1], out.past_key_values


def _choose(logits: "torch.Tensor", temperature: float, top_k: int, top_p: float, generator: "torch.Generator") -> int:
    """Return one token id from logits [vocabulary]."""
    import torch

    if temperature == 0.0:
        return int(logits.argmax())
    logits = logits.float() / temperature
    if top_k:
        kept = logits.topk(min(top_k, len(logits)))
        logits = torch.full_like(logits, -torch.inf).scatter(0, kept.indices, kept.values)
    probs = logits.softmax(-1)
    if top_p < 1.0:
        descending = probs.sort(descending=True)
        beyond = descending.values.cumsum(-1) - descending.values >= top_p
        probs[descending.indices[beyond]] = 0.0
    return int(torch.multinomial(probs, 1, generator=generator))


if __name__ == "__main__":
    main()
