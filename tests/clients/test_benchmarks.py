"""Benchmarks of other people: short runs on the bundled pair, and what they read there."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.clients.everyone import AIPERF, GUIDELLM, LM_EVAL
from tests.clients.served import MODEL, Served, Through, all_ways, same_text, skip_if_missing
from tests.support.clients import Client, ClientTable
from tests.support.services import PAIR

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1800)]

TARGET = PAIR / "target"
NUM_REQUESTS, NUM_TOKENS, GAMMA = 4, 12, 3
DRAFTING = {"temperature": 0, "gamma": GAMMA, "gate": "target_confidence", "gate_threshold": 0.0, "ignore_eos": True}
"""In a request: greedy, and every round has a draft. AIPerf would read `none` as null."""


def run(clients: ClientTable, client: Client, *arguments: str, **environment: str) -> None:
    """Run a benchmark to its end, which must be a good one."""
    row = clients.row(client)
    code, output = clients.run(client, *arguments, **environment)
    print(f"{client.name}: ended with {code}", flush=True)
    if code:
        row.broke.append(f"ended with {code}")
    assert code == 0, output[-4000:]


def test_guidellm(pair: Served, clients: ClientTable, through: Through, tmp_path: Path) -> None:
    skip_if_missing(GUIDELLM)
    row = clients.row(GUIDELLM)
    extras = ",".join(f"extras.body.{name}={json.dumps(value)}" for name, value in DRAFTING.items())
    backend = f"kind=openai_http,model={MODEL},request_format=/v1/completions,{extras}"
    texts = {}
    with all_ways(pair, through) as ways:
        for name, way in ways.items():
            report = tmp_path / f"{name}.json"
            run(
                clients, GUIDELLM, "guidellm", "run", "--disable-console-interactive",
                "--backend", f"{backend},target={way.root}",
                "--profile", "kind=synchronous",
                "--constraint", f"kind=max_requests,count={NUM_REQUESTS}",
                "--tokenizer", f"kind=huggingface_auto,model={TARGET}",
                "--data", f"kind=synthetic_text,prompt_tokens=16,output_tokens={NUM_TOKENS}",
                "--output", f"kind=json,path={report}",
            )  # fmt: skip
            (benchmark,) = json.loads(report.read_text())["benchmarks"]
            assert benchmark["metrics"]["request_totals"]["successful"] == NUM_REQUESTS
            assert benchmark["metrics"]["request_totals"]["total"] == NUM_REQUESTS
            texts[name] = [one["output"] for one in benchmark["requests"]["successful"]]
            assert all(texts[name])
    row.ran.append("synthetic completions, streamed")
    row.seen.append(f"{NUM_REQUESTS} of {NUM_REQUESTS} requests successful")
    same_text(row, texts)


def test_aiperf(pair: Served, clients: ClientTable, through: Through, tmp_path: Path) -> None:
    skip_if_missing(AIPERF)
    row = clients.row(AIPERF)
    texts = {}
    with all_ways(pair, through) as ways:
        for name, way in ways.items():
            folder = tmp_path / name.replace(" ", "-")
            run(
                clients, AIPERF, "aiperf", "profile", "-m", MODEL, "--url", way.root,
                "--endpoint-type", "completions", "--streaming", "--use-server-token-count", "--random-seed", "1",
                "--tokenizer", str(TARGET), "--request-count", str(NUM_REQUESTS), "--concurrency", "1",
                "--prompt-input-tokens-mean", "16", "--prompt-output-tokens-mean", str(NUM_TOKENS),
                "--extra-inputs", json.dumps(DRAFTING), "--export-level", "raw", "--ui", "none",
                "--no-gpu-telemetry", "--no-server-metrics", "--artifact-dir", str(folder),
                # Offline, it takes a folder for a name of the hub. The proxy to nowhere keeps it on loopback.
                HF_HUB_OFFLINE="",
            )  # fmt: skip
            told = json.loads((folder / "profile_export_aiperf.json").read_text())
            assert (told["request_count"]["avg"], told["error_summary"]) == (NUM_REQUESTS, [])
            answers = [list(_events(json.loads(line))) for line in _lines(folder / "profile_export_raw.jsonl")]
            pooled = told["pooled_spec_decode_acceptance_histogram"]
            assert pooled == _pooled(answers)
            assert sum(pooled.values()) == told["total_spec_decode_steps"]["avg"] > 0
            texts[name] = sorted(_text(events) for events in answers)
            assert all(texts[name])
    row.ran.append("synthetic completions, streamed, with acceptance of drafts")
    row.seen.append(
        f"{NUM_REQUESTS} of {NUM_REQUESTS} requests; acceptance_histogram, {GAMMA} + 1 entries a request: {pooled}"
    )
    same_text(row, texts)


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def _events(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of one answer, as AIPerf has recorded them."""
    for response in record["responses"]:
        for packet in response["packets"]:
            if packet["name"] == "data" and packet["value"] != "[DONE]":
                yield json.loads(packet["value"])


def _text(events: list[dict[str, Any]]) -> str:
    return "".join(choice["text"] for event in events for choice in event["choices"])


def _pooled(answers: list[list[dict[str, Any]]]) -> dict[str, int]:
    """Return how many rounds accepted so many tokens, over all answers, none of the zeros."""
    pooled = [0] * (GAMMA + 1)
    for events in answers:
        told = events[-1]["metrics"]["speculative_decoding"]
        assert len(told["acceptance_histogram"]) == told["num_spec_tokens"] + 1 == GAMMA + 1
        pooled = [one + more for one, more in zip(pooled, told["acceptance_histogram"], strict=True)]
    return {str(number): count for number, count in enumerate(pooled) if count}


@pytest.mark.parametrize("tokenizer", ["huggingface", "remote"])
def test_lm_eval(tokenizer: str, pair: Served, clients: ClientTable, tmp_path: Path) -> None:
    """Its answers do not stream. Log-likelihoods are transformers' own, on the same model."""
    skip_if_missing(LM_EVAL)
    row = clients.row(LM_EVAL)
    settings = f"model={MODEL},base_url={pair.url}/completions,num_concurrent=1,max_retries=1"
    settings += f",tokenizer_backend={tokenizer}"
    settings += f",tokenizer={TARGET}" if tokenizer == "huggingface" else ""
    run(
        clients, LM_EVAL, "lm-eval", "run", "--model", "local-completions", "--model_args", settings,
        "--include_path", "tests/clients/lm_eval", "--tasks", "specgate_loglikelihood,specgate_generate",
        "--output_path", str(tmp_path), "--log_samples",
    )  # fmt: skip
    scored, generated = (_samples(tmp_path, task) for task in ("loglikelihood", "generate"))
    texts = json.loads(Path("tests/clients/lm_eval/texts.json").read_text())
    expected = [_loglikelihood(text["context"], text["continuation"]) for text in texts]
    assert len(scored) == len(generated) == len(texts)
    difference = max(abs(float(one[0]) - own) for one, own in zip(scored, expected, strict=True))
    row.ran += ["generate_until", "loglikelihood", f"{tokenizer} tokenizer"]
    row.seen.append(f"log-likelihoods are HuggingFace's within {1e-6 if difference < 1e-6 else 1e-4:g}")
    if difference > 1e-4:
        row.broke.append(f"a log-likelihood differs from HuggingFace's by {difference:g}")
    assert difference <= 1e-4
    assert all(one for one in generated)


def _samples(folder: Path, task: str) -> list[Any]:
    """Return the answers to a task's documents, in their order."""
    (file,) = folder.rglob(f"samples_specgate_{task}_*.jsonl")
    samples = sorted((json.loads(line) for line in _lines(file)), key=lambda one: one["doc_id"])
    return [one["filtered_resps"][0] for one in samples]


@cache
def _model() -> tuple[Any, Any]:
    return AutoTokenizer.from_pretrained(TARGET), AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)


def _loglikelihood(context: str, continuation: str) -> float:
    """Return what transformers says; lm-eval moves blanks at the context's end into the continuation."""
    tokenizer, model = _model()
    ids = tokenizer(context + continuation, add_special_tokens=False).input_ids
    num_context = len(tokenizer(context.rstrip(), add_special_tokens=False).input_ids)
    with torch.inference_mode():
        logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return float(sum(logprobs[place - 1, ids[place]] for place in range(num_context, len(ids))))
