"""An orchestrator for a program that embeds it: one call from two models, or from two addresses, to generated text."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType

from rich.console import Console

from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.local.launch import MIN_SESSIONS, Capacity, open_pair
from orchestrator.local.pair_settings import GivenSettings, PairSettings

TOKENS_A_SESSION = 2048


@asynccontextmanager
async def open_orchestrator(
    target: str | None = None,
    draft: str | None = None,
    *,
    verifiers: Sequence[str] = (),
    drafters: Sequence[str] = (),
    verifier_wait_s: float | None = None,
    in_process: bool = False,
    max_sessions: int = MIN_SESSIONS,
    tokens_a_session: int = TOKENS_A_SESSION,
    log: Console | None = None,
    **settings: object,
) -> AsyncIterator[Orchestrator]:
    """Yield an orchestrator of two models, and end what was started for it.

    The two services start as child processes of this program. Those that are named are used as they are.

    Args:
        target, draft: a folder, a hub id or a GGUF file each; without any model and address the bundled pair.
        verifiers, drafters: addresses, HOST:PORT, of running services.
        verifier_wait_s: how long to wait for a named verifier that loads, in seconds; None is 600.
        in_process: load both models in this process and start no service.
        max_sessions: requests that run at the same time.
        tokens_a_session: tokens of one request at most, prompt and answer together.
        log: where progress and warnings are printed; None prints nothing.
        settings: of the services that start here, such as ``device="cuda:0"`` or ``method="suffix"``.

    Raises:
        InvalidArgument: the arguments do not fit together, or a service refuses its settings.
        ServiceUnavailable: a service does not start or does not answer.
        TokenizerMismatch: draft and target have different tokenizers.
    """
    given = GivenSettings(MappingProxyType({name: value for name, value in settings.items() if value is not None}))
    models = PairSettings(target, draft, tuple(verifiers), tuple(drafters), given, verifier_wait_s, in_process)
    with_draft = models.starts_drafter or bool(drafters)
    capacity = Capacity(max_sessions, tokens_a_session)
    output = log or Console(stderr=True, quiet=True)
    async with open_pair(models, with_draft=with_draft, capacity=capacity, log=output) as pair:
        yield pair.orchestrator
