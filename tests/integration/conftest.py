"""One drafter and one verifier with the bundled pair, shared by the tests of a module."""

from collections.abc import Iterator

import pytest

from tests.support.services import PAIR, Service, running


@pytest.fixture(scope="module")
def drafter() -> Iterator[Service]:
    with running("drafter", PAIR / "draft") as service:
        yield service


@pytest.fixture(scope="module")
def verifier() -> Iterator[Service]:
    with running("verifier", PAIR / "target") as service:
        yield service
