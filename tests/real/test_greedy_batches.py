"""With a real model, eight chats at a time: greedy text is token for token what ``generate`` writes of each alone."""

import pytest

from tests.real.greedy import SETTINGS, expect_generated
from tests.real.pair import Services

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


@pytest.mark.parametrize("setting", SETTINGS)
async def test_greedy_is_what_transformers_generates(services: Services, setting: str) -> None:
    await expect_generated(services, setting, at_once=8)
