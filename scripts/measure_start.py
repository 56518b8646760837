#!/usr/bin/env python3
"""Measure how long a start takes, part by part: of a service, of ``generate`` and of ``serve``.

    python scripts/measure_start.py --json start.json
    python scripts/measure_start.py --repeats 1 --json /tmp/start.json

On the bundled pair, or on ``--target`` and ``--draft``. The two services are started together, as ``generate`` does.
What their processes import is in them whatever we do, so it is told alone; so is a Ray that serves nothing of ours.
"""

import argparse
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import track
from rich.table import Table

import specgate
from specgate_lab.report import ResultsFile

MODEL_CODE = "from transformers import LlamaForCausalLM"
RAY_ALONE = "import ray; from ray import serve; ray.init(include_dashboard=False); serve.start()"
PAIR = Path(specgate.__file__).parent / "demo_pair"
PORT = 18_347
URL = f"http://127.0.0.1:{PORT}/readyz"
Parts = dict[str, float]


def python(code: str) -> float:
    """Return the seconds until these lines have run; how long the process takes to end is not in them."""
    start = time.perf_counter()
    command = [sys.executable, "-c", f"{code}; print('done', flush=True)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        if not any(line == "done\n" for line in process.stdout):
            raise SystemExit(f"{code}: ended before it was done")
        return time.perf_counter() - start


def service(role: str, model: str) -> Parts:
    """Return the seconds at which a service came to each stage, and was ready."""
    command = [sys.executable, "-m", f"{role}_svc", "--model", model, "--port", "0", "--threads", "1", "--json-events"]
    start, at = time.perf_counter(), Parts()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            stage = event.get("stage", event["event"]) + (" done" if event.get("done") else "")
            at.setdefault(stage, time.perf_counter() - start)
            if stage == "ready":
                process.terminate()
    return {
        f"{role}: imports": at["config"],
        f"{role}: weights": at["weights done"] - at["config"],
        f"{role}: self-check": at["self-check done"] - at["weights done"],
        f"{role}: times of forwards, listening": at["ready"] - at["self-check done"],
        f"{role}: ready": at["ready"],
    }


def both_services(target: str, draft: str) -> Parts:
    with ThreadPoolExecutor(2) as pool:
        verifier, drafter = pool.map(service, ("verifier", "drafter"), (target, draft))
    return {**verifier, **drafter}


def generate(target: str, draft: str) -> Parts:
    """Return the seconds to the first text of ``generate``, and to its end."""
    command = [sys.executable, "-m", "orchestrator.cli", "generate", "def add(a, b):", "--max-tokens", "16"]
    start, first_s = time.perf_counter(), 0.0
    process = subprocess.Popen(
        [*command, "--target", target, "--draft", draft], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
    )
    with process:
        assert process.stdout is not None
        while process.stdout.read(64):
            first_s = first_s or time.perf_counter() - start
    return {"generate: first text": first_s, "generate: end": time.perf_counter() - start}


def serve(target: str, draft: str) -> Parts:
    """Return the seconds until ``serve`` says that it is ready."""
    command = [sys.executable, "-m", "orchestrator.cli", "serve", "--port", str(PORT), "--grpc-port", "0"]
    if _is_ready():
        raise SystemExit(f"port {PORT} is another server's")
    start = time.perf_counter()
    with subprocess.Popen(
        [*command, "--target", target, "--draft", draft], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        while not _is_ready():
            if process.poll() is not None:
                raise SystemExit(f"serve ended with {process.returncode}")
            time.sleep(0.02)
        ready_s = time.perf_counter() - start
        process.terminate()
    return {"serve: ready": ready_s}


def _is_ready() -> bool:
    with suppress(OSError, urllib.error.URLError), urllib.request.urlopen(URL, timeout=1) as answer:
        return bool(answer.status == 200)
    return False


def measured(measures: Mapping[str, Callable[[], Parts]], repeats: int) -> list[dict[str, object]]:
    """Return a row for each part: the median, the least and the most seconds, all measures in turns."""
    runs: list[Parts] = []
    for _ in track(range(repeats), "starts", console=Console(stderr=True)):
        runs.append({name: seconds for measure in measures.values() for name, seconds in measure().items()})
    return [
        {
            "name": name,
            "seconds": round(median(run[name] for run in runs), 2),
            "runs_s": sorted(round(run[name], 2) for run in runs),
        }
        for name in runs[0]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=str(PAIR / "target"))
    parser.add_argument("--draft", default=str(PAIR / "draft"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    file, pair = ResultsFile(options.json), (options.target, options.draft)
    measures: dict[str, Callable[[], Parts]] = {
        "torch": lambda: {"import torch": python("import torch")},
        "models": lambda: {"import a model of transformers": python(MODEL_CODE)},
        "ray": lambda: {"Ray and Serve alone": python(RAY_ALONE)},
        "services": lambda: both_services(*pair),
        "generate": lambda: generate(*pair),
        "serve": lambda: serve(*pair),
    }
    rows = measured(measures, options.repeats)
    table = Table("part", "seconds", "runs")
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console().print(table)
    file.write({"starts": rows})


if __name__ == "__main__":
    main()
