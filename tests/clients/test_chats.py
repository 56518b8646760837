"""Chats, structured output and responses of a real model, as other people's clients ask for them."""

from collections.abc import Iterator

import pytest

from tests.clients.everyone import ON_THE_REAL_MODEL, Cases
from tests.clients.served import Served, Through, run_and_compare, serving
from tests.real.pair import DRAFT, ROOT, TARGET, missing
from tests.support.clients import ClientTable

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def real() -> Iterator[Served]:
    """The pair of ``scripts/real_model``, served."""
    if names := missing():
        pytest.skip(f"run scripts/real_model first: {', '.join(names)} not in {ROOT}")
    with serving({"verifier.model": TARGET, "drafter.model": DRAFT}) as served:
        yield served


@pytest.mark.parametrize("cases", ON_THE_REAL_MODEL, ids=lambda cases: cases.client.name)
def test_chats(cases: Cases, real: Served, clients: ClientTable, through: Through) -> None:
    run_and_compare(cases, real, clients, through)
