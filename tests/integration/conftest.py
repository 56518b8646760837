"""The two services of the bundled pair, by name."""

from collections.abc import Iterator

import pytest

from tests.support.services import PAIR, Service, running


@pytest.fixture(scope="session")
def drafter(bundled_services: tuple[Service, Service]) -> Service:
    return bundled_services[0]


@pytest.fixture(scope="session")
def verifier(bundled_services: tuple[Service, Service]) -> Service:
    return bundled_services[1]


@pytest.fixture(scope="module")
def slow_verifier() -> Iterator[Service]:
    """A verifier before whose verdict all is announced, on a busy machine too."""
    with running("verifier", PAIR / "target", module=("tests.support.slow_service", "verifier", "30000")) as service:
        yield service
