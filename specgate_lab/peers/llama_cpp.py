"""llama.cpp in a process of its own, by the package xllamacpp: what the benchmark of a GGUF file is compared with.

It is spoken to as ``hf_baseline`` is. With ``--assistant`` it speculates with that file as its draft model.
"""

import argparse
import json
import os
import sys
from typing import Any


def main() -> None:
    """Load the file, say ``{"event": "ready"}``, then answer requests until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m specgate_lab.peers.llama_cpp", description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--assistant")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu", type=int)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    if arguments.cpu is not None:
        os.sched_setaffinity(0, {arguments.cpu})
    server = _server(arguments)
    print(json.dumps({"event": "ready", "device": "cpu", "no_assistant": ""}), flush=True)
    for line in sys.stdin:
        print(json.dumps(_run(server, **json.loads(line))), flush=True)


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
        "return_tokens": True, "cache_prompt": False,
    }  # fmt: skip
    answer = server.handle_completions(request)
    if "error" in answer:
        raise RuntimeError(f"llama.cpp: {answer['error']}")
    timings = answer["timings"]
    # Its clock begins at the end of the prompt, and the first token comes of that.
    return {"token_ids": answer["tokens"], "num_first": 1, "decode_s": timings["predicted_ms"] / 1000}
