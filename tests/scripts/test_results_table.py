"""docs/results/README.md is what the results files beside it say."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def results_table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results_table", ROOT / "scripts" / "results_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date() -> None:
    folder = ROOT / "docs" / "results"
    assert results_table().page(folder) == (folder / "README.md").read_text("utf-8")


def test_a_file_tells_where_it_comes_from_and_its_rows(tmp_path: Path) -> None:
    machine = {"cores": 2, "cpu": "a CPU", "gpus": ["a card, 580"]}
    versions = {"torch": "2.13", "transformers": "5.23"}
    origin = {"date": "2026-11-25T01:02:03", "command": "bench --pin", "commit": None, "machine": machine}
    rows = [{"name": "spec", "tokens_per_s": 123.4, "ratio_to_target_95": [1.25, 2.0], "acceptance_rate": 0.5}]
    (tmp_path / "a.json").write_text(json.dumps({"provenance": {**origin, "versions": versions}, "rows": rows}))
    page = results_table().page(tmp_path)
    assert "## [a](a.json)" in page
    assert "2026-11-25, commit unknown, 2 cores of a CPU, a card, 580, torch 2.13, transformers 5.23." in page
    assert "| spec | 123 | 1.25 to 2.00 | 50% |" in page


def test_a_gpu_day_tells_each_step_and_its_figures(tmp_path: Path) -> None:
    machine = {"cores": 16, "cpu": "a CPU", "gpus": ["a card"]}
    origin = {"date": "2026-11-25T01:02:03", "command": "gpu_day", "commit": None, "machine": machine}
    versions = {"torch": "2.11", "transformers": "5.17"}
    step = {
        "name": "smoke",
        "status": "FAIL",
        "seconds": 5.5,
        "told": "SLOW: sdpa | no pages",
        "rows": [{"GB/s": 3000.0}],
    }
    told = {"provenance": {**origin, "versions": versions}, "note": "abc123", "steps": [step]}
    (tmp_path / "day.json").write_text(json.dumps(told))
    page = results_table().page(tmp_path)
    assert "commit abc123" in page
    assert "| smoke | FAIL | 5.50 | SLOW: sdpa \\| no pages |" in page
    assert "### smoke" in page
    assert "| 3000 |" in page
