"""Our Triton kernels can be compiled for sm_80 and sm_90, and fit into their shared memory. No card is needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
pytestmark = pytest.mark.triton
KERNELS = {"_add_rms_norm", "_choose_part", "_merge", "_rotate", "_silu_times", "_store", "attend"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("capability", ["80", "90"])
def test_every_kernel_is_compiled(capability: str, tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    # What an earlier run has compiled must not stand for this one.
    environ |= {"TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.specgate.runtime.attention.compile_kernels", capability]
    done = subprocess.run(command, cwd=ROOT, env=environ, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines()} == KERNELS
