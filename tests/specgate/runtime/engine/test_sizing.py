"""How many tokens the pages hold, by what a machine and a container say of their memory."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specgate import memory
from specgate.errors import ResourceExhausted
from specgate.memory import Cgroup
from specgate.runtime.engine.sizing import COLD_FACTOR, fitting_kv_tokens

MIB = 1 << 20
BYTES_A_TOKEN = 1024
CONTEXT_LENGTH = 4096


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 64 MiB left, of which a quarter is to spare: 16,384 tokens."""
    (tmp_path / "meminfo").write_text("MemTotal:  900000 kB\nMemAvailable:  65536 kB\n", encoding="ascii")
    cgroup = Cgroup(tmp_path / "limit", tmp_path / "usage", tmp_path / "stat", "inactive_file")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUPS", (cgroup,))
    return tmp_path


def write_cgroup(folder: Path, limit: str, usage: int, inactive_file: int) -> None:
    for name, text in (("limit", limit), ("usage", str(usage)), ("stat", f"anon 5\ninactive_file {inactive_file}")):
        (folder / name).write_text(f"{text}\n", encoding="ascii")


def runner(page_size: int = 256, device: str = "cpu") -> Any:
    return SimpleNamespace(
        device=torch.device(device),
        kv_bytes_a_token=BYTES_A_TOKEN,
        loaded=SimpleNamespace(context_length=CONTEXT_LENGTH),
        pool=SimpleNamespace(page_size=page_size),
    )


def test_every_session_at_its_longest_and_as_much_for_cold_prefixes_is_enough() -> None:
    assert fitting_kv_tokens(runner(), 1) == COLD_FACTOR * CONTEXT_LENGTH


def test_a_quarter_of_the_free_memory_is_the_most() -> None:
    assert fitting_kv_tokens(runner(), 16) == 16 * 1024


def test_a_container_has_no_more_than_its_own_limit(machine: Path) -> None:
    write_cgroup(machine, str(40 * MIB), 20 * MIB, 12 * MIB)
    assert fitting_kv_tokens(runner(), 16) == 8 * 1024


@pytest.mark.parametrize("limit", ["max", "9223372036854771712"])
def test_a_container_without_a_limit_has_what_the_machine_has(limit: str, machine: Path) -> None:
    write_cgroup(machine, limit, 20 * MIB, 0)
    assert fitting_kv_tokens(runner(), 16) == 16 * 1024


@pytest.mark.parametrize("usage", [40 * MIB, 50 * MIB])
def test_not_even_a_page_is_said(usage: int, machine: Path) -> None:
    write_cgroup(machine, str(40 * MIB), usage, 0)
    with pytest.raises(ResourceExhausted, match=r"a KV page takes 262144 bytes, and -?[0-9]+ are to spare"):
        fitting_kv_tokens(runner(), 16)


@pytest.mark.parametrize(
    ("memory_share", "free_mib", "spare_mib"),
    [
        (1.0, 50, 0.8 * 50),
        # Of 80 MiB 60 are ours, 20 of them taken. Of another process's 20 nothing shows yet, or it has all of them.
        (0.75, 60, 0.8 * 40),
        (0.75, 35, 0.8 * 35),
    ],
)
def test_on_a_card_no_process_counts_on_anothers_share(
    memory_share: float, free_mib: int, spare_mib: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free_mib * MIB, 80 * MIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 20 * MIB)
    assert fitting_kv_tokens(runner(device="cuda"), 64, memory_share) == int(spare_mib * 1024)
