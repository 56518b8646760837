"""The site that most tests of the HTTP door ask."""

from collections.abc import AsyncIterator

import pytest

from tests.orchestrator.api.http_serving import Site, open_site


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with open_site() as site:
        yield site
