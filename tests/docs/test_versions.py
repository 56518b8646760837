"""The version stands in three places; a release changes all of them."""

import tomllib

import yaml

from specgate import __version__
from tests.support.pages import ROOT


def test_one_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    vllm = tomllib.loads((ROOT / "specgate_vllm" / "pyproject.toml").read_text("utf-8"))["project"]
    assert {vllm["version"], str(citation["version"])} == {__version__}
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")
