"""The generated pages are what their scripts print, and the pages of the APIs name what the code has."""

import runpy
from pathlib import Path

import pytest

from specgate.errors import ModelLoadError, UnsupportedArchitecture
from specgate.rpc.status import CODES

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize(
    ("script", "page"),
    [("settings_table.py", "configuration.md"), ("command_line_page.py", "command-line.md")],
)
def test_the_page_is_up_to_date(script: str, page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside ``test_specgate_yaml_is_the_defaults``: the settings' page is made from that file."""
    runpy.run_path(str(ROOT / "scripts" / script), run_name="__main__")
    made = capsys.readouterr().out
    assert (ROOT / "docs" / "api" / page).read_text() == made, f"run scripts/{script} > docs/api/{page}"


def test_every_path_of_the_http_api_is_on_its_page() -> None:
    openapi = pytest.importorskip("orchestrator.api.http.openapi", reason="needs the extra ray")
    page = (ROOT / "docs" / "api" / "http.md").read_text()
    assert [path for path in openapi.document()["paths"] if f" {path}`" not in page] == []


def test_every_reason_of_an_error_is_on_the_page_of_the_grpc_api() -> None:
    page = (ROOT / "docs" / "api" / "grpc.md").read_text()
    # What a service that cannot load says to whoever starts it; it answers no call.
    reasons = {error.reason for error in CODES} - {ModelLoadError.reason, UnsupportedArchitecture.reason}
    assert {reason for reason in reasons if reason not in page} == set()


def test_every_file_of_deploy_is_in_its_readme() -> None:
    told = (ROOT / "deploy" / "README.md").read_text()
    files = {path.name for path in (ROOT / "deploy").iterdir() if path.is_file()} - {"README.md"}
    assert {name for name in files if name not in told} == set()
