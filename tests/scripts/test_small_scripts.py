"""Scripts that take a round apart, and that write prompts of tests and the page of results."""

import json
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


def test_the_page_of_results_is_up_to_date(script: Callable[[str], Any]) -> None:
    folder = ROOT / "docs" / "results"
    assert script("results_table").page(folder) == (folder / "README.md").read_text("utf-8")


def test_results_tell_where_they_come_from_and_a_gpu_day_its_steps(
    script: Callable[[str], Any], tmp_path: Path
) -> None:
    machine = {"cores": 2, "cpu": "a CPU", "gpus": ["a card, 580"]}
    versions = {"torch": "2.13", "transformers": "5.23"}
    origin = {"date": "2026-11-25T01:02:03", "command": "x", "commit": None, "machine": machine, "versions": versions}
    row = {"name": "spec", "tokens_per_s": 123.4, "ratio_to_target_95": [1.25, 2.0], "acceptance_rate": 0.5}
    (tmp_path / "a.json").write_text(json.dumps({"provenance": origin, "rows": [row]}))
    step = {"name": "smoke", "status": "FAIL", "seconds": 5.5, "told": "sdpa | no pages", "rows": [{"GB/s": 3000.0}]}
    (tmp_path / "day.json").write_text(json.dumps({"provenance": origin, "note": "abc123", "steps": [step]}))
    page = script("results_table").page(tmp_path)
    for line in (
        "## [a](a.json)",
        "2026-11-25, commit unknown, 2 cores of a CPU, a card, 580, torch 2.13, transformers 5.23.",
        "| spec | 123 | 1.25 to 2.00 | 50% |",
        "commit abc123",
        "| smoke | FAIL | 5.50 | sdpa \\| no pages |",
        "### smoke",
        "| 3000 |",
    ):
        assert line in page
