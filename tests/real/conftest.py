"""Every test here needs the folders of scripts/real_model, and skips without them."""

from collections.abc import Iterator

import pytest

from tests.real.pair import ROOT, Services, missing, serving


@pytest.fixture(scope="session", autouse=True)
def folders() -> None:
    """Skip where they are not there."""
    if names := missing():
        pytest.skip(f"run scripts/real_model first: {', '.join(names)} not in {ROOT}")


@pytest.fixture(scope="module")
def services(folders: None) -> Iterator[Services]:
    """Both services in float32, for the tests of a module."""
    with serving() as services:
        yield services
