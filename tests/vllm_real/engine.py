"""Stock vLLM in its own environment, as a process: without a server, or as the OpenAI API."""

import http.client
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_services import free_port

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
PROGRAMS = Path(__file__).parent / "programs"
GAMMA = 4
START_S, RUN_S = 300.0, 1500.0


def skip_if_missing() -> None:
    if not PYTHON.exists():
        pytest.skip("vLLM is not installed: run scripts/test_vllm")


def speculation(model: str = "specgate_vllm.Proposer") -> dict[str, Any]:
    """Return what vLLM is told of a proposer."""
    return {"method": "custom_class", "model": model, "num_speculative_tokens": GAMMA}


def drafting(*endpoints: str, model: str = "specgate_vllm.Proposer", **settings: Any) -> dict[str, Any]:
    """Return arguments of ``LLM`` with our drafter."""
    additional = {"specgate": {"drafters": list(endpoints), **settings}}
    return {"speculative_config": speculation(model), "additional_config": additional}


def environment(cores: str) -> dict[str, str]:
    """Return the environment of a process of vLLM; ``cores`` as ``VLLM_CPU_OMP_THREADS_BIND`` has them, a rank each."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "OMP_"))}
    return {
        **kept,
        "PYTHONPATH": str(PROGRAMS),
        "LD_PRELOAD": str(PYTHON.parent.parent / "lib" / "libiomp5.so"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def offline(
    folder: Path, target: Path, prompts: Sequence[Sequence[int]], *jobs: Mapping[str, Any], cores: str = "0", **llm: Any
) -> list[dict[str, Any]]:
    """Return what ``programs/offline.py`` answers to these jobs."""
    skip_if_missing()
    order = {"target": str(target), "llm": llm, "prompts": list(map(list, prompts)), "jobs": jobs}
    out, file, log = folder / "answer.json", folder / "order.json", folder / "vllm.log"
    file.write_text(json.dumps({**order, "out": str(out)}))
    with log.open("w") as written:
        done = subprocess.run(
            [PYTHON, PROGRAMS / "offline.py", file],
            env=environment(cores), stdout=written, stderr=subprocess.STDOUT, check=False, timeout=RUN_S,
        )  # fmt: skip
    assert done.returncode == 0, log.read_text()[-4000:]
    answers: list[dict[str, Any]] = json.loads(out.read_text())
    return answers


class Server:
    """vLLM's OpenAI API on a port of loopback."""

    def __init__(self, port: int) -> None:
        self._port = port

    def get(self, path: str) -> tuple[int, str]:
        """Return status and body."""
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def stream(self, prompt: Sequence[int], max_tokens: int) -> Iterator[tuple[float, list[int]]]:
        """Yield the time and the token ids of each piece of a greedy completion."""
        body = {
            "model": "m", "prompt": list(prompt), "max_tokens": max_tokens, "temperature": 0, "stream": True,
            "ignore_eos": True, "return_token_ids": True,
        }  # fmt: skip
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)) as connection:
            connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == http.client.OK, answer.read()
            for line in answer:
                if line.startswith(b"data: {"):
                    yield time.monotonic(), json.loads(line[6:])["choices"][0].get("token_ids") or []


@contextmanager
def serving(folder: Path, target: Path, llm: Mapping[str, Any], cores: str = "0") -> Iterator[Server]:
    """Run the API with arguments of ``LLM``. The ``vllm`` command looks for a package of another name in this build."""
    skip_if_missing()
    port, log = free_port(), folder / "serve.log"
    command = [
        # Whatever this process keeps to.
        "taskset", "-c", f"0-{(os.cpu_count() or 1) - 1}",
        PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", target, "--served-model-name", "m",
        "--enforce-eager", "--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", "8",
        "--host", "127.0.0.1", "--port", str(port),
        *(word for name, value in llm.items() for word in (f"--{name.replace('_', '-')}", json.dumps(value))),
    ]  # fmt: skip
    with log.open("w") as written:
        # Elsewhere than here, where the package's sources would be found before it.
        process = subprocess.Popen(
            command, cwd=folder, env=environment(cores), stdout=written, stderr=subprocess.STDOUT
        )
        try:
            server, give_up_at_s = Server(port), time.monotonic() + START_S
            while not _is_up(server):
                assert process.poll() is None, log.read_text()[-4000:]
                assert time.monotonic() < give_up_at_s, log.read_text()[-4000:]
                time.sleep(0.5)
            yield server
        finally:
            process.terminate()
            process.wait(60)


def _is_up(server: Server) -> bool:
    with suppress(OSError):
        return server.get("/health")[0] == http.client.OK
    return False
