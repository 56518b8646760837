"""The replicas of a served system on this machine, and what each reports of its sessions and pages."""

import asyncio
import re
from typing import NamedTuple

from orchestrator.decode.ports import Lease
from orchestrator.services.links import GrpcDialer
from orchestrator.services.status import loads_of
from orchestrator.services.streams import ChannelCache
from specgate.errors import SpecgateError
from specgate.types import ModelInfo
from specgate_lab.soak.processes import descendants, listeners

_TITLE = "ray::ServeReplica:"
ROLES = ("verifier", "drafter")
ANSWER_S = 2.0


class ServedReplica(NamedTuple):
    """A process of Ray Serve's that runs a replica; ``role`` is "verifier", "drafter" or "gateway"."""

    pid: int
    role: str


class Held(NamedTuple):
    """Sessions, and tokens in pages that are in use, at one moment, as so many ``replicas`` report them."""

    sessions: int = 0
    kv_tokens: int = 0
    replicas: int = 0


def replicas_under(pid: int) -> list[ServedReplica]:
    """Return the replicas of the Ray that ``pid`` has started, by the names that they give their processes."""
    found = []
    for one, title in descendants(pid).items():
        # The title is APP:DEPLOYMENT, after the name of a method while that runs.
        names = re.split("[:#.]", title.removeprefix(_TITLE)) if title.startswith(_TITLE) else ()
        found += [ServedReplica(one, role) for role in (*ROLES, "gateway") if role.capitalize() in names]
    return sorted(found)


async def model_info(replica: ServedReplica) -> ModelInfo | None:
    """Return what a drafter or a verifier says of itself, None where it does not answer."""
    if replica.role not in ROLES:
        return None
    channels = ChannelCache()
    try:
        dialer = GrpcDialer(channels, ANSWER_S)
        # Ray's own ports are among them; they do not answer this call.
        for one in listeners(replica.pid):
            try:
                return await dialer.model_info(Lease(f"127.0.0.1:{one.port}"), replica.role, ANSWER_S)
            except SpecgateError:
                continue
        return None
    finally:
        await channels.close()


async def are_batch_invariant(replicas: list[ServedReplica]) -> bool:
    """Return whether each verifier reports that it is batch-invariant."""
    infos = await asyncio.gather(*(model_info(one) for one in replicas if one.role == "verifier"))
    return bool(infos) and all(info is not None and info.batch_invariant for info in infos)


async def held_by(replicas: list[ServedReplica]) -> Held:
    """Return what all drafters and verifiers hold together; those that do not answer are left out."""
    loads = [loads_of(info) for info in await asyncio.gather(*map(model_info, replicas)) if info is not None]
    return Held(sum(sessions.used for sessions, _ in loads), sum(kv_tokens.used for _, kv_tokens in loads), len(loads))
