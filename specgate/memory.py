"""How much memory is left."""

from pathlib import Path
from typing import NamedTuple

_MEMINFO = Path("/proc/meminfo")


class Cgroup(NamedTuple):
    """Files of a container's memory limit, and the name of what its page cache could give back."""

    limit: Path
    usage: Path
    stat: Path
    reclaimable: str


_V2, _V1 = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")
_CGROUPS = (
    Cgroup(_V2 / "memory.max", _V2 / "memory.current", _V2 / "memory.stat", "inactive_file"),
    Cgroup(_V1 / "memory.limit_in_bytes", _V1 / "memory.usage_in_bytes", _V1 / "memory.stat", "total_inactive_file"),
)


def available_bytes() -> int:
    """Return what the machine, and the container that we may be in, has left."""
    available = _field(_MEMINFO, "MemAvailable") << 10
    return min([available, *(_left_in(cgroup) for cgroup in _CGROUPS if _is_limited(cgroup))])


def _is_limited(cgroup: Cgroup) -> bool:
    return cgroup.limit.exists() and cgroup.limit.read_text(encoding="ascii").strip() != "max"


def _left_in(cgroup: Cgroup) -> int:
    limit, usage = (int(path.read_text(encoding="ascii")) for path in (cgroup.limit, cgroup.usage))
    return limit - usage + _field(cgroup.stat, cgroup.reclaimable)


def _field(path: Path, name: str) -> int:
    """Return the number after ``name`` in a file of names and numbers; 0 where it is not there."""
    for line in path.read_text(encoding="ascii").splitlines():
        if line.split()[:1] in ([name], [f"{name}:"]):
            return int(line.split()[1])
    return 0
