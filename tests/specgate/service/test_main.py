"""A service as a process of its own."""

import json
import subprocess
import sys

SERVING = """
import gc, sys, threading
from specgate.service.main import main

def tell():
    sys.stdin.readline()
    print(gc.get_freeze_count(), flush=True)

threading.Thread(target=tell, daemon=True).start()
main("drafter", ["--method", "suffix", "--port", "0", "--json-events"])
"""


def test_no_collection_walks_what_was_loaded() -> None:
    command = [sys.executable, "-c", SERVING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert any(json.loads(line)["event"] == "ready" for line in process.stdout)
        process.stdin.write("\n")
        process.stdin.flush()
        num_frozen = int(process.stdout.readline())
        process.terminate()
    assert num_frozen > 10_000
