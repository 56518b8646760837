"""Two hosts on one machine: a network namespace each, and a cable that loses packets or is unplugged."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

CABLE = "sgchaos"
ADDRESSES = {"a": "10.185.0.1", "b": "10.185.0.2"}
LOSS = """table inet chaos {{
  chain input {{
    type filter hook input priority 0;
    iifname "{cable}" numgen random mod 100 < {percent} counter drop
  }}
}}
"""


def why_not() -> str:
    """Return why there are no two hosts here; empty where they can be made."""
    if os.geteuid():
        return "network namespaces need root"
    if not (shutil.which("ip") and shutil.which("unshare")):
        return "needs ip and unshare"
    if subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True).returncode:
        return "this machine permits no network namespaces"
    return ""


class TwoHosts:
    """Hosts "a" and "b"; neither reaches the other's loopback, nor anything else."""

    def __init__(self) -> None:
        self._names = {side: f"sg-chaos-{side}-{os.getpid()}" for side in ADDRESSES}

    def on(self, side: str) -> list[str]:
        """Return what makes a command run on that host."""
        return ["ip", "netns", "exec", self._names[side]]

    def plug(self, *, in_: bool) -> None:
        """Plug the cable in, or out, at one end: then nothing crosses it."""
        self._ip("-n", self._names["b"], "link", "set", CABLE, "up" if in_ else "down")

    def lose(self, percent: int) -> None:
        """Let both hosts drop so many of a hundred packets that reach them."""
        for side in ADDRESSES:
            rules = LOSS.format(cable=CABLE, percent=percent)
            subprocess.run([*self.on(side), "nft", "-f", "-"], input=rules, check=True, text=True)

    def stop_losing(self) -> int:
        """Let all packets through again; return how many were lost."""
        num_lost = 0
        for side in ADDRESSES:
            told = self._nft(side, "--json", "list", "table", "inet", "chaos")
            num_lost += sum(int(one) for one in re.findall(r'"packets": (\d+)', told))
            self._nft(side, "delete", "table", "inet", "chaos")
        return num_lost

    def _nft(self, side: str, *arguments: str) -> str:
        return subprocess.run([*self.on(side), "nft", *arguments], check=True, capture_output=True, text=True).stdout

    def lay(self) -> None:
        """Make both hosts and the cable."""
        a, b = self._names.values()
        for name in (a, b):
            self._ip("netns", "add", name)
        self._ip("link", "add", CABLE, "netns", a, "type", "veth", "peer", "name", CABLE, "netns", b)
        for side, name in self._names.items():
            self._ip("-n", name, "addr", "add", f"{ADDRESSES[side]}/24", "dev", CABLE)
            self._ip("-n", name, "link", "set", CABLE, "up")
            self._ip("-n", name, "link", "set", "lo", "up")

    def remove(self) -> None:
        """Remove both hosts, and the cable with them."""
        for name in self._names.values():
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def _ip(self, *arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Have two hosts while the context lasts."""
    hosts = TwoHosts()
    try:
        hosts.lay()
        yield hosts
    finally:
        hosts.remove()
