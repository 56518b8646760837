"""Scripts that take a round apart, and that write prompts of tests."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def test_every_part_of_a_round_is_timed() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "measure_round.py"), "--turns", "20", "--cold", "1"]
    done = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
    for part in ("messages of a round", "the event loop", "the engine's thread", "another process"):
        assert part in done.stdout


def test_every_snippet_of_the_prompts_begins_with_a_definition(script: Callable[[str], Any]) -> None:
    prompts = script("make_test_prompts")
    found = prompts.snippets()
    assert len(found) > prompts.NUM_PROMPTS
    assert all(one.lstrip().startswith(("def ", "class ")) for one in found)
