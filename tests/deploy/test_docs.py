"""The generated pages are what their scripts print: settings and commands as the code has them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize(
    ("script", "page"),
    [("settings_table.py", "configuration.md"), ("command_line_page.py", "command-line.md")],
)
def test_the_page_is_up_to_date(script: str, page: str) -> None:
    """Beside ``test_specgate_yaml_is_the_defaults``: the settings' page is made from that file."""
    command = [sys.executable, ROOT / "scripts" / script]
    made = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True).stdout
    assert (ROOT / "docs" / "api" / page).read_text() == made, f"run scripts/{script} > docs/api/{page}"


def test_every_file_of_deploy_is_in_its_readme() -> None:
    told = (ROOT / "deploy" / "README.md").read_text()
    files = {path.name for path in (ROOT / "deploy").iterdir() if path.is_file()} - {"README.md"}
    assert {name for name in files if name not in told} == set()
