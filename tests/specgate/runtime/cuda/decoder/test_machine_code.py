"""What a draft's kernels become for SmolLM2-135M on sm_90 and sm_80; no card is needed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[5]
pytestmark = [pytest.mark.triton, pytest.mark.timeout(300)]
PHASES = {"qkv": (168, 22, 9), "attend": (108, 14, 0), "out": (118, 6, 3), "gate_up": (125, 2, 9), "down": (128, 4, 6),
          "choose": (150, 16, 12)}  # fmt: skip
"""Registers, block barriers, and loads of 16 bytes before the wait, all of weights, by Triton 3.7.1."""


def compiled(capability: str, folder: Path) -> dict[str, dict[str, Any]]:
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    # What an earlier run has compiled must not stand for this one.
    environ |= {"TRITON_CACHE_DIR": str(folder)}
    command = [sys.executable, "-m", "tests.specgate.runtime.cuda.decoder.compile_kernels", capability]
    done = subprocess.run(command, cwd=ROOT, env=environ, check=False, timeout=280, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {found.pop("kernel"): found for found in map(json.loads, done.stdout.splitlines())}


@pytest.fixture(scope="module")
def on_90(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return compiled("90", tmp_path_factory.mktemp("sm_90"))


@pytest.mark.parametrize("phase", PHASES)
def test_a_kernel_a_phase_that_begins_early(on_90: dict[str, dict[str, Any]], phase: str) -> None:
    registers, block_barriers, early_loads = PHASES[phase]
    assert on_90[phase] == {
        "registers": registers,
        "stack_bytes": 0,
        "early_loads": early_loads,
        "block_barriers": block_barriers,
    }


def test_sm_80_spills_nothing_either(tmp_path: Path) -> None:
    found = compiled("80", tmp_path)
    assert len(found) == 7
    assert not any(one["stack_bytes"] for one in found.values())
