"""Who asks, at either door: what is shared fairly is shared by this name."""

from contextvars import ContextVar

from orchestrator.api.keys.keyring import CALLER

ADDRESS: ContextVar[str] = ContextVar("address", default="")
"""The IP address that the running task's request came from. Clients behind one proxy have one."""


def client_name() -> str:
    """Return the name of the running task's key; where no keys are asked for its address."""
    caller = CALLER.get()
    return ADDRESS.get() if caller is None else caller.name
