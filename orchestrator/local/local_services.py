"""A drafter and a verifier as child processes on this machine, kept alive while they are used."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from orchestrator.local.child import Child
from specgate.errors import InvalidArgument, ServiceUnavailable, SpecgateError
from specgate.service.config import config_of
from specgate.service.flags import to_flags
from specgate.service.settings import ModelSettings, settings_of

FIRST_BACKOFF_S = 0.2
MAX_BACKOFF_S = 10.0
MAX_DEATHS_IN_A_ROW = 5
STEADY_S = 30.0
"""A service that lived this long starts counting its deaths anew."""
_DRAIN_S = 1.0
_BAD_FLAGS = 2

OnLoading = Callable[[str, str, int, int], None]
"""Called with the service's role, a stage's name, how much of it is done and how much there is."""
OnNotice = Callable[[str], None]
"""Called with a sentence for the user."""


@dataclass(frozen=True, slots=True)
class LocalService:
    """What one service is started with: its role, drafter or verifier, and how its model is served.

    ``cpu`` is the core that it is pinned to, if any.
    """

    role: str
    settings: ModelSettings
    cpu: int | None = None

    @classmethod
    def of(cls, role: str, model: str, *, cpu: int | None = None, **settings: object) -> Self:
        """Return the service of a model; ``settings`` are those of ``specgate.service.settings``.

        Raises:
            InvalidArgument: a value is outside its range.
        """
        return cls(role, settings_of(role, model=model, **settings), cpu)

    @property
    def module(self) -> str:
        return f"{self.role}_svc"

    def arguments(self, port: int) -> list[str]:
        """Return what the module is started with; port 0 lets it pick one."""
        config = config_of(
            self.role,
            **self.settings.model_dump(),
            cpu=self.cpu,
            port=port,
            drain_s=_DRAIN_S,
            json_events=True,
            exit_with_stdin=True,
        )
        return to_flags(config)

    def with_settings(self, **settings: object) -> Self:
        """Return the same service with other settings."""
        return replace(self, settings=settings_of(self.role, **{**self.settings.model_dump(), **settings}))


class Supervised:
    """A running service that is started again, on the same port, when it dies.

    Meanwhile the decode loop goes on without it where it can, and finds it again at the same address.
    """

    def __init__(self, service: LocalService, on_notice: OnNotice) -> None:
        self._service = service
        self._on_notice = on_notice
        self._child: Child | None = None
        self._keeper: asyncio.Task[None] | None = None
        self.endpoint = ""

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    @property
    def role(self) -> str:
        return self._service.role

    async def start(self, on_loading: OnLoading) -> None:
        """Return once it serves.

        Raises:
            InvalidArgument: it refused its settings.
            ServiceUnavailable: it ended before it served; tells its last words.
        """
        await self._launch(0, on_loading)
        self._keeper = asyncio.create_task(self._keep_alive())

    async def stop(self) -> None:
        """End it for good. Safe to call twice."""
        if self._keeper:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
        if self._child:
            await self._child.stop()

    async def _launch(self, port: int, on_loading: OnLoading) -> None:
        self._child = await Child.start(self._service.module, self._service.arguments(port))
        while event := await self._child.next_event():
            if event.get("event") == "ready":
                self.endpoint = str(event["endpoint"])
                return
            if event.get("event") == "notice":
                self._on_notice(f"{self.role}: {event['text']}")
            if event.get("event") == "loading":
                on_loading(self.role, str(event["stage"]), int(event["done"]), int(event["total"]))
        raise _refusal(self.role, await self._child.wait(), self._child.last_words)

    async def _keep_alive(self) -> None:
        deaths = 0
        while self._child and deaths < MAX_DEATHS_IN_A_ROW:
            since = time.monotonic()
            death = _death(await self._child.wait())
            deaths = deaths + 1 if time.monotonic() - since < STEADY_S else 1
            self._on_notice(f"the {self.role} {death}; starting it again")
            await asyncio.sleep(min(FIRST_BACKOFF_S * 2 ** (deaths - 1), MAX_BACKOFF_S))
            await self._relaunch()
        self._on_notice(f"the {self.role} died {deaths} times in a row and is left alone")

    async def _relaunch(self) -> None:
        try:
            await self._launch(int(self.endpoint.rpartition(":")[2]), _in_silence)
            self._on_notice(f"the {self.role} is back at {self.endpoint}")
        except SpecgateError as error:
            self._on_notice(str(error))


def _in_silence(role: str, stage: str, done: int, total: int) -> None:
    """Show no bar for a restart: it would run into the output of the command."""


def _refusal(role: str, code: int, last_words: str) -> SpecgateError:
    """Return why it never served; a service that refuses says so in one line that starts with its name."""
    name = f"{role}-svc: "
    said = [line.removeprefix(name) for line in last_words.splitlines() if line.startswith(name)]
    if said and code == _BAD_FLAGS:
        field, _, problem = said[-1].partition(": ")
        return InvalidArgument(field.removeprefix("--"), problem)
    words = said[-1] if said else f"{last_words or 'it said nothing'} ({_death(code)})"
    return ServiceUnavailable(f"the {role} did not start: {words}")


def _death(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
