"""llama.cpp in a process of its own, by the package xllamacpp: what the benchmark of a GGUF file is compared with.

It is spoken to as ``hf_baseline`` is. With ``--assistant`` it speculates with that file as its draft model.
"""

import argparse
import json
import os
import sys
from typing import Any

from specgate_lab.peers.hf_baseline import answer, parse_arguments


def main() -> None:
    """Load the file, say ``{"event": "ready"}``, then answer requests until standard input ends."""
    arguments = parse_arguments(__doc__)
    if arguments.cpu is not None:
        os.sched_setaffinity(0, {arguments.cpu})
    server = _server(arguments)
    answer({"event": "ready", "device": "cpu", "no_assistant": ""})
    for line in sys.stdin:
        answer(_run(server, **json.loads(line)))


def _server(arguments: argparse.Namespace) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = arguments.model
    # Its context is the model's own.
    params.n_ctx, params.n_parallel, params.n_gpu_layers = 0, 1, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = arguments.threads
    if arguments.assistant:
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        draft = params.speculative.draft
        draft.mparams.path = arguments.assistant
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = arguments.threads
    return xllamacpp.Server(params)


def _run(
    server: Any, token_ids: list[int], max_tokens: int, temperature: float = 0.0, **sampling: Any
) -> dict[str, Any]:
    """Emit ``max_tokens`` tokens, past any end-of-sequence token."""
    request = {
        "prompt": token_ids, "n_predict": max_tokens, "temperature": temperature, "top_k": sampling["top_k"],
        "top_p": sampling["top_p"], "min_p": 0.0, "seed": sampling["seed"] % 2**31, "ignore_eos": True,
        "return_tokens": True, "verbose": True, "cache_prompt": False,
    }  # fmt: skip
    told = server.handle_completions(request)
    if "error" in told:
        raise RuntimeError(f"llama.cpp: {told['error']}")
    timings = told["timings"]
    # Its clock begins at the end of the prompt, and the first token comes of that.
    decode_s, first_s = timings["predicted_ms"] / 1000, timings["prompt_ms"] / 1000
    return {"token_ids": told["__verbose"]["tokens"], "num_first": 1, "decode_s": decode_s, "first_s": first_s}


if __name__ == "__main__":
    main()
