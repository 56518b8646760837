"""Run vLLM without a server, in its own environment: ``python offline.py ORDER.json``.

An order has ``target``, ``llm`` (arguments of ``LLM``), ``prompts`` (token ids), ``jobs``, and ``out``, the file of the
answer. A job has ``batch``, and arguments of ``SamplingParams``. Its prompts run ``batch`` at a time.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any


def run(llm: Any, prompts: list[list[int]], job: dict[str, Any]) -> dict[str, Any]:
    """Return a job's texts, its rate and what speculation did."""
    from vllm import SamplingParams

    batch, params = job.pop("batch"), SamplingParams(ignore_eos=True, **job)
    before, start_s, texts = counts(llm), time.monotonic(), []
    for first in range(0, len(prompts), batch):
        asked = [{"prompt_token_ids": ids} for ids in prompts[first : first + batch]]
        answers = llm.generate(asked, params, use_tqdm=False)
        texts += [list(choice.token_ids) for answer in answers for choice in answer.outputs]
    seconds, after = time.monotonic() - start_s, counts(llm)
    return {
        "texts": texts,
        "tokens_per_s": sum(map(len, texts)) / seconds,
        **{name: after[name] - before.get(name, 0) for name in after},
    }


def counts(llm: Any) -> dict[str, int]:
    """Return vLLM's own counters of speculation."""
    prefix = "vllm:spec_decode_num_"
    found = {one.name: getattr(one, "value", None) for one in llm.get_metrics()}
    return {
        name.removeprefix(prefix): value
        for name, value in found.items()
        if name.startswith(prefix) and value is not None
    }


def main() -> None:
    from vllm import LLM

    order = json.loads(Path(sys.argv[1]).read_text())
    llm = LLM(
        order["target"], enforce_eager=True, dtype="float32", max_model_len=1024, max_num_seqs=8,
        disable_log_stats=False, **order["llm"],
    )  # fmt: skip
    warm = {"batch": 8, "temperature": 0.0, "max_tokens": 16}
    run(llm, order["prompts"][:8], warm)
    Path(order["out"]).write_text(json.dumps([run(llm, order["prompts"], job) for job in order["jobs"]]))


if __name__ == "__main__":
    main()
