"""A served system for clients, and what is the same for each of them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import NamedTuple

import pytest

from tests.clients.everyone import Cases
from tests.support.chaos_system import serving_system
from tests.support.clients import Client, ClientRow, ClientTable
from tests.support.cut_proxy import Cut

MODEL, WHOLE = "specgate", "as it is"
Through = Callable[[str, Cut], AbstractContextManager[str]]
"""Stands a proxy before an endpoint: a context of the proxy's own endpoint."""


class Served(NamedTuple):
    """``endpoint`` is HOST:PORT of the HTTP door."""

    endpoint: str

    @property
    def root(self) -> str:
        """The door's URL."""
        return f"http://{self.endpoint}"

    @property
    def url(self) -> str:
        """What a client of OpenAI's takes for its base."""
        return f"{self.root}/v1"


@contextmanager
def serving(settings: Mapping[str, object] = MappingProxyType({})) -> Iterator[Served]:
    """Run ``orchestrator serve``, the bundled pair unless settings say otherwise, while the context lasts."""
    with serving_system({"model_name": MODEL, "gateway.http.port": 0, **settings}) as system:
        yield Served(system.http)


@contextmanager
def all_ways(served: Served, through: Through) -> Iterator[dict[str, Served]]:
    """Yield the ways to a door: none between, and the two proxies that cut its answers."""
    with through(served.endpoint, Cut.BYTES) as by_bytes, through(served.endpoint, Cut.GLUED) as glued:
        yield {WHOLE: served, Cut.BYTES: Served(by_bytes), Cut.GLUED: Served(glued)}


def skip_if_missing(client: Client) -> None:
    if client.missing:
        pytest.skip(client.missing)


def run_and_compare(cases: Cases, served: Served, clients: ClientTable, through: Through) -> None:
    """Run all cases, and the streams once more through each proxy: what comes must be the same."""
    skip_if_missing(cases.client)
    with all_ways(served, through) as ways:
        wanted = {way.url: cases.streams for way in ways.values() if cases.streams}
        values = clients.cases(cases.client, MODEL, {**wanted, served.url: (*cases.names, *cases.streams)})
    texts = {name: values[way.url] for name, way in ways.items() if cases.streams}
    if texts:
        texts[WHOLE] = {name: texts[WHOLE][name] for name in cases.streams}
        same_text(clients.row(cases.client), texts)


def same_text(row: ClientRow, texts: Mapping[str, object]) -> None:
    """Tell in the row whether the proxies change what comes. Raises AssertionError where they do."""
    for cut in Cut:
        row.ran.append(f"streams {cut}")
        if texts[cut] != texts[WHOLE]:
            row.broke.append(f"streams {cut}: another text")
        assert texts[cut] == texts[WHOLE]
