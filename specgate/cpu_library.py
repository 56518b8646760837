import ctypes
from enum import StrEnum
from functools import cache
from pathlib import Path


class InstructionSet(StrEnum):
    NONE = "none"
    AVX2 = "avx2"
    AVX512 = "avx512"
    NEON = "neon"


def library_path():
    return Path(__file__).parent / "runtime/cpu/libspecgate_cpu.so"


@cache
def load():
    return ctypes.CDLL(str(library_path()))


def instruction_set():
    import os

    return InstructionSet(os.environ.get("SPECGATE_CPU_KERNELS") or list(InstructionSet)[load().specgate_cpu_best()])


def why_not():
    return "no"
