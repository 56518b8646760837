"""The doors that the fuzz tests share."""

from collections.abc import Iterator

import pytest

from tests.support.door_process import DoorProcess, door_process


@pytest.fixture(scope="session")
def doors() -> Iterator[DoorProcess]:
    """The bundled pair at its full context, in a process of its own."""
    with door_process() as doors:
        yield doors
