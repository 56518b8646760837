"""The site that most tests of the HTTP door ask, certificates for both doors, and clients in other languages."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.orchestrator.api.client_programs import Command, cpp_client, node_client
from tests.orchestrator.api.http_serving import Site, open_site
from tests.specgate.rpc.certificates import Certificates


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with open_site() as site:
        yield site


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.fixture(scope="module", params=[node_client, cpp_client], ids=["node", "cpp"])
def client(request: pytest.FixtureRequest) -> Command:
    """The command that runs the client in each language."""
    command: Command = request.param()
    return command
