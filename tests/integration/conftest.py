"""The two services of the bundled pair, by name."""

import pytest

from tests.support.services import Service


@pytest.fixture(scope="session")
def drafter(bundled_services: tuple[Service, Service]) -> Service:
    return bundled_services[0]


@pytest.fixture(scope="session")
def verifier(bundled_services: tuple[Service, Service]) -> Service:
    return bundled_services[1]
