"""docs/operations.md tells every setting, with its default, as the code has it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_table_of_settings_is_up_to_date() -> None:
    """Beside ``test_specgate_yaml_is_the_defaults``: the table is made from that file."""
    made = subprocess.run(
        [sys.executable, ROOT / "scripts" / "settings_table.py"], check=True, timeout=30, capture_output=True, text=True
    )
    assert made.stdout.strip() in (ROOT / "docs" / "operations.md").read_text()


def test_every_file_of_deploy_is_in_its_readme() -> None:
    told = (ROOT / "deploy" / "README.md").read_text()
    files = {path.name for path in (ROOT / "deploy").iterdir() if path.is_file()} - {"README.md"}
    assert {name for name in files if name not in told} == set()
