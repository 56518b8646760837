"""Scripts as modules."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Import a script, or a module of one, by its name."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module
