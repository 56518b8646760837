"""HuggingFace without us, in a process of its own: what the benchmark is compared with.

One JSON object a line on standard input, ``{"token_ids": [...], "max_tokens": N}`` with sampling parameters where
they are wanted, and one answer a line, ``{"token_ids": [...], "num_first": ..., "decode_s": ...}``: all but the
``num_first`` first tokens came within ``decode_s``. The loop is the model, its KV cache and the choice of a token, and
nothing else: what a careful person writes by hand. A request with a ``schedule`` is for the library's own speculation:
"prompt-lookup", or assisted generation with the model of ``--assistant``.
"""

import argparse
import inspect
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from specgate_lab.peers.hf_assisted import SpeculativeLoop

if TYPE_CHECKING:
    import torch


def main() -> None:
    """Load the models, say ``{"event": "ready"}``, then answer requests until standard input ends.

    An assistant that the library cannot use is no error; ``no_assistant`` in ``ready`` says why.
    """
    arguments = parse_arguments(__doc__)
    if arguments.cpu is not None:
        # Threads inherit the affinity of the one that makes them, so this comes before torch.
        os.sched_setaffinity(0, {arguments.cpu})
    loop = BareLoop(arguments.model, arguments.dtype, arguments.device, arguments.threads)
    speculative = SpeculativeLoop(loop.model, loop.device)
    problem = _assist(speculative, loop, arguments) if arguments.assistant else ""
    answer({"event": "ready", "device": str(loop.device), "no_assistant": problem})
    for line in sys.stdin:
        request = json.loads(line)
        answer(speculative.run(**request) if "schedule" in request else loop.run(**request))


def _assist(speculative: SpeculativeLoop, loop: "BareLoop", arguments: argparse.Namespace) -> str:
    """Let the assistant draft; return why it cannot, nothing where it can."""
    try:
        assistant = load_model(arguments.assistant, arguments.dtype, loop.device)
        speculative.assist(assistant, _tokenizers(arguments.model, arguments.assistant))
    # Which targets and assistants go together only the library knows, and it has no class for what it refuses.
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _tokenizers(target: str, assistant: str) -> dict[str, Any]:
    """Return both models' tokenizers where they differ, as ``generate`` takes them."""
    from specgate.tokenizer import fingerprint, first_difference, load_tokenizer

    own, other = load_tokenizer(target), load_tokenizer(assistant)
    if own is None or other is None or first_difference(fingerprint(own), fingerprint(other)) is None:
        return {}
    return {"tokenizer": own, "assistant_tokenizer": other}


def parse_arguments(description: str | None) -> argparse.Namespace:
    """Return the flags of a process that ``BareLoopProcess`` starts."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", required=True)
    parser.add_argument("--assistant")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu", type=int)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


def answer(message: dict[str, Any]) -> None:
    """Send a message to who started this process."""
    print(json.dumps(message), flush=True)


class BareLoop:
    """One model, and ``model(input_ids, past_key_values)`` until enough tokens are there."""

    def __init__(self, model: str, dtype: str, device: str, threads: int) -> None:
        import torch

        from specgate.devices import pick_device

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
        """Emit ``max_tokens`` tokens, past any end-of-sequence token. Ids without a row here are read as 0."""
        import torch

        num_rows = self.model.get_input_embeddings().num_embeddings
        token_ids = [token_id if token_id < num_rows else 0 for token_id in token_ids]
        generator = torch.Generator(self.device).manual_seed(seed % 2**63)
        chosen: list[int] = []
        with torch.inference_mode():
            cache, step = None, token_ids
            first_at = time.perf_counter()
            while len(chosen) < max_tokens:
                logits, cache = self._forward(step, cache)
                step = [_choose(logits, temperature, top_k, top_p, generator)]
                chosen += step
                first_at = first_at if len(chosen) > 1 else time.perf_counter()
            end = time.perf_counter()
        return {"token_ids": chosen, "num_first": 1, "decode_s": end - first_at}

    def _forward(self, token_ids: list[int], cache: Any) -> tuple["torch.Tensor", Any]:
        import torch

        step = torch.tensor([token_ids], device=self.device)
        out = self.model(input_ids=step, past_key_values=cache, use_cache=True, **self._keep_last)
        return out.logits[0, -1], out.past_key_values


def load_model(model: str, dtype: str, device: "torch.device") -> Any:
    """Return the causal language model of a folder, a hub id or a GGUF file, ready to decode. No code of its own runs.

    ``dtype`` is what the services take, so "auto" too means what it means there.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from specgate.types import dtype_on
    from specgate.weights import is_quantised

    logging.disable_progress_bar()
    if is_quantised(model):
        from specgate.runtime.loading import load

        return load(model, device, getattr(torch, dtype_on(dtype, device.type)), lambda *_: None).model
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        model, dtype=getattr(torch, dtype_on(dtype, device.type)), use_safetensors=True, trust_remote_code=False
    )
    return loaded.to(device).eval()


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
