"""A served system for clients, and what is the same for each of them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import NamedTuple

import pytest

from tests.clients.conftest import Through
from tests.clients.everyone import Cases
from tests.support.chaos_system import serving_system
from tests.support.clients import Client, ClientTable
from tests.support.cut_proxy import Cut

MODEL = "specgate"


class Served(NamedTuple):
    """``endpoint`` is HOST:PORT of the HTTP door."""

    endpoint: str

    @property
    def url(self) -> str:
        """What a client takes for its base."""
        return f"http://{self.endpoint}/v1"


@contextmanager
def serving(settings: Mapping[str, object] = MappingProxyType({})) -> Iterator[Served]:
    """Run ``orchestrator serve``, the bundled pair unless settings say otherwise, while the context lasts."""
    with serving_system({"model_name": MODEL, "gateway.http.port": 0, **settings}) as system:
        yield Served(system.http)


def skip_if_missing(client: Client) -> None:
    if client.missing:
        pytest.skip(client.missing)


def run_and_compare(cases: Cases, served: Served, clients: ClientTable, through: Through) -> None:
    """Run all cases, and the streams once more through each proxy: what comes must be the same."""
    skip_if_missing(cases.client)
    with through(served.endpoint, Cut.BYTES) as by_bytes, through(served.endpoint, Cut.GLUED) as glued:
        cut = {Cut.BYTES: Served(by_bytes).url, Cut.GLUED: Served(glued).url} if cases.streams else {}
        wanted = {served.url: (*cases.names, *cases.streams), **dict.fromkeys(cut.values(), cases.streams)}
        values = clients.cases(cases.client, MODEL, wanted)
    row = clients.row(cases.client)
    whole = {name: values[served.url][name] for name in cases.streams}
    for how, url in cut.items():
        row.ran.append(f"streams {how}")
        if values[url] != whole:
            row.broke.append(f"streams {how}: another text")
        assert values[url] == whole
