"""Completions of the bundled pair, as other people's clients ask for them, and through proxies that cut streams."""

from collections.abc import Iterator

import pytest

from tests.clients.conftest import Through
from tests.clients.everyone import ON_THE_PAIR, Cases
from tests.clients.served import Served, run_and_compare, serving
from tests.support.clients import ClientTable

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.mark.parametrize("cases", ON_THE_PAIR, ids=lambda cases: cases.client.name)
def test_completions(cases: Cases, served: Served, clients: ClientTable, through: Through) -> None:
    run_and_compare(cases, served, clients, through)
