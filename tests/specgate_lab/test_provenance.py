"""What every results file tells of where it comes from."""

import json
from pathlib import Path

import pytest

from specgate_lab.provenance import provenance
from specgate_lab.report import results_path


def test_it_tells_machine_versions_commit_command_and_date() -> None:
    told = json.loads(json.dumps(provenance(["/usr/bin/orchestrator", "bench", "--prompts", "a b.jsonl"])))
    assert told["command"] == "orchestrator bench --prompts 'a b.jsonl'"
    assert told["machine"]["cores"] >= 1
    assert {"python", "torch", "transformers", "grpcio"} <= told["versions"].keys()
    assert told["date"].endswith("+00:00")


def test_it_names_no_folder_of_the_person_who_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home, here = tmp_path / "home", tmp_path / "home" / "work"
    here.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    told = provenance(["bench", "--target", f"{home}/models/t", f"--draft={here}/d", str(here)])["command"]
    assert told == "bench --target ~/models/t --draft=./d ."
    # A folder that only begins alike, or ends alike, is told as it is.
    others = f"bench --target={home}-models/t /data{here}"
    assert provenance(others.split())["command"] == others


def test_a_program_that_is_missing_leaves_its_part_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    told = provenance(["bench"])
    assert (told["commit"], told["machine"]["gpus"]) == (None, [])


def test_results_get_a_file_of_their_own_where_the_folder_can_be_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = results_path("bench")
    assert path is not None
    assert path.parent == tmp_path / "specgate" / "results"
    assert path.name.endswith("Z-bench.json")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert results_path("bench") is None
