"""The script that writes the prompts of the integration tests."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_every_snippet_begins_with_a_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    script = importlib.import_module("make_test_prompts")
    found = script.snippets()
    assert len(found) > script.NUM_PROMPTS
    assert all(one.lstrip().startswith(("def ", "class ")) for one in found)
