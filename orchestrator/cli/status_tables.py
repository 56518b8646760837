"""The tables of ``orchestrator status``."""

from rich.console import Console
from rich.table import Table

from orchestrator.services.status import Load, NodeStatus, ReplicaStatus, SystemStatus
from orchestrator.terminal.tables import number, table_of

NONE = "–"
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def print_status(console: Console, status: SystemStatus) -> None:
    """Print a row a replica and a row a node; below each table what does not fit into it."""
    if status.uptime_s is not None:
        console.print(f"deployed {_duration(status.uptime_s)} ago")
    columns = (
        ("role", lambda one: one.role),
        ("replica", lambda one: one.name),
        ("node", lambda one: one.node),
        ("card", lambda one: ", ".join(one.cards) or NONE),
        ("state", lambda one: one.state),
        ("endpoint", lambda one: "\n".join(one.endpoints) or NONE),
        ("up", lambda one: _duration(one.uptime_s)),
        ("sessions", lambda one: _load(one.sessions)),
        ("KV tokens", lambda one: _load(one.kv_tokens)),
        ("running", lambda one: _queue(one, "running", "max_running")),
        ("waiting", lambda one: _queue(one, "waiting", "max_queued")),
    )
    console.print(table_of(status.replicas, columns, num_names=6, style_of=lambda one: "red" if one.error else None))
    for replica in status.replicas:
        if replica.error:
            console.print(f"{replica.role} {replica.name}: {replica.error}", style="red", markup=False, soft_wrap=True)
    if status.nodes:
        console.print(_nodes(status))


def _nodes(status: SystemStatus) -> Table:
    columns = (
        ("node", lambda one: one.address),
        ("state", lambda one: "ALIVE" if one.alive else "DEAD"),
        ("labels", _labels),
        ("CPUs", lambda one: number(one.cpus, "g")),
        ("GPUs", lambda one: number(one.gpus, "g")),
    )
    return table_of(status.nodes, columns, num_names=3)


def _labels(node: NodeStatus) -> str:
    return ", ".join(f"{name}={value}" for name, value in node.labels.items()) or NONE


def _load(load: Load | None) -> str:
    return NONE if load is None else f"{load.used:,}/{load.max:,}"


def _queue(replica: ReplicaStatus, name: str, limit: str) -> str:
    queue = replica.queue
    return NONE if queue is None else f"{getattr(queue, name)}/{getattr(queue, limit)}"


def _duration(seconds: float | None) -> str:
    """Return it in the largest unit of which there is one: 45 s, 12 min, 3.5 h."""
    if seconds is None:
        return NONE
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{round(seconds / size, 1):g} {unit}"
    return f"{seconds:.0f} s"
