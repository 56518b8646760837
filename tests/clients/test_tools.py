"""Tools, as other people's clients offer them: the real model is served with a template that knows tools."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.everyone import WITH_TOOLS, Cases
from tests.clients.served import Served, Through, run_and_compare, serving
from tests.real.pair import DRAFT, ROOT, TARGET, missing
from tests.support.clients import ClientTable

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1800)]

TEMPLATE = Path(__file__).parents[1] / "support" / "chat_templates" / "hermes.jinja"


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The real model in Hermes' words. It was never taught them: what it must call is sure, what it may is not."""
    if names := missing():
        pytest.skip(f"run scripts/real_model first: {', '.join(names)} not in {ROOT}")
    folder = tmp_path_factory.mktemp("models") / "hermes"
    folder.mkdir()
    for file in TARGET.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "chat_template.jinja").unlink()
    shutil.copy(TEMPLATE, folder / "chat_template.jinja")
    with serving({"verifier.model": folder, "drafter.model": DRAFT}) as served:
        yield served


@pytest.mark.parametrize("cases", WITH_TOOLS, ids=lambda cases: cases.client.name)
def test_tools(cases: Cases, tools: Served, clients: ClientTable, through: Through) -> None:
    run_and_compare(cases, tools, clients, through)
