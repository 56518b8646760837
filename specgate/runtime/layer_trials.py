"""How a model would draft for itself with blocks left out: a process that ``orchestrator tune layers`` asks.

``python -m specgate.runtime.layer_trials MODEL`` takes one JSON object a line on standard input, and answers with one a
line. First ``{"texts": [{"prompt": [...], "answer": [...], "seed": N}, ...], "sampling": {...}}``, texts that the model
wrote by itself; then any number of ``{"attention": [...], "mlp": [...], "num_texts": N}``: the blocks to leave out, and
how many of the texts to look at. The answer ``{"ranks": [[...], ...]}`` says of each answer's tokens which place they
have among what the draft would have chosen there, 0 being its choice and ``FAR`` any place from there on. A text is
looked at in one forward, because what a draft chooses depends on the text before it alone.
"""

import argparse
import inspect
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import torch

from specgate.devices import pick_device
from specgate.errors import SpecgateError
from specgate.runtime import noise, sampling
from specgate.runtime.layer_skip import LayerSkip, has_mlp_blocks, left_out
from specgate.runtime.loading import LoadedModel, load, pick_dtype
from specgate.runtime.noise import Purpose
from specgate.types import SamplingParams
from specgate.weights import fingerprint

FAR = 4
"""No draft guesses that far."""


class Text(NamedTuple):
    """One answer of the model's own, and what it was asked and drawn with."""

    prompt: Sequence[int]
    answer: Sequence[int]
    seed: int
    sampling: SamplingParams

    @classmethod
    def of_object(cls, line: dict[str, Any]) -> Self:
        """Return the text of a line; JSON has no numbers as keys."""
        law = line["sampling"]
        bias = {int(token_id): value for token_id, value in law["logit_bias"].items()}
        return cls(**{**line, "sampling": SamplingParams(**{**law, "logit_bias": bias})})


@torch.inference_mode()
def ranks(loaded: LoadedModel, skip: LayerSkip, text: Text) -> list[int]:
    """Return the place of each token of the answer among the draft's choices, 0 to ``FAR``.

    In shared_noise the draft has the target's noise. Counted are scores that are larger than the token's own.
    """
    params = text.sampling
    ids = torch.tensor([[*text.prompt, *text.answer]], device=loaded.device)
    wanted = len(text.answer) + 1
    # Logits of a long prompt may be larger than the model. Not every model can leave them out.
    takes = inspect.signature(loaded.model.forward).parameters
    keep = {"logits_to_keep": wanted} if "logits_to_keep" in takes else {}
    with left_out(loaded.model, skip):
        logits = loaded.model(input_ids=ids, use_cache=False, **keep).logits[0, -wanted:-1, : loaded.vocab_size]
    counts = sampling.token_counts(text.prompt, (), text.answer[:-1], logits) if params.has_penalties else None
    scores = sampling.adjust(logits, params, counts)
    if not params.greedy:
        keys = [
            noise.row_key(text.seed, ids.shape[1] - len(scores) + row, Purpose.SHARED) for row in range(len(scores))
        ]
        every = torch.arange(scores.shape[-1], device=loaded.device)
        scores = sampling.log_probs(scores, params) + noise.gumbel(keys, every)
    own = scores.gather(1, ids[0, len(text.prompt) :, None])
    found: list[int] = (scores > own).sum(-1).clamp(max=FAR).tolist()
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Load the model, say ``{"event": "ready"}`` and what it is, then answer until standard input ends."""
    arguments = _parse(argv)
    if arguments.cpu is not None:
        os.sched_setaffinity(0, {arguments.cpu})
    torch.set_num_threads(arguments.threads)
    try:
        device = pick_device(arguments.device)
        loaded = load(arguments.model, device, pick_dtype(arguments.dtype, device), lambda *_: None)
        _answer(_ready(loaded, arguments.model))
        _serve(loaded)
    except SpecgateError as error:
        _answer({"event": "failed", "reason": error.reason, "message": str(error)})
        return 1
    except torch.OutOfMemoryError as error:
        _answer({"event": "failed", "reason": "RESOURCE_EXHAUSTED", "message": str(error).splitlines()[0]})
        return 1
    return 0


def _ready(loaded: LoadedModel, name: str) -> dict[str, Any]:
    return {
        "event": "ready",
        "fingerprint": fingerprint(name),
        "num_layers": loaded.model.config.get_text_config().num_hidden_layers,
        "has_mlp_blocks": has_mlp_blocks(loaded.model),
        "dtype": str(loaded.dtype).removeprefix("torch."),
        "device": str(loaded.device),
    }


def _serve(loaded: LoadedModel) -> None:
    texts: list[Text] = []
    for line in sys.stdin:
        message = json.loads(line)
        if "texts" in message:
            texts = [Text.of_object(text) for text in message["texts"]]
            _answer({"event": "texts", "count": len(texts)})
            continue
        skip = LayerSkip(frozenset(message["attention"]), frozenset(message["mlp"]))
        _answer({"ranks": [ranks(loaded, skip, text) for text in texts[: message["num_texts"]]]})


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m specgate.runtime.layer_trials", description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu", type=int)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    return parser.parse_args(argv)


def _answer(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    sys.exit(main())
