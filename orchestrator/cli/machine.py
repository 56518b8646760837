"""The machine's cores, memory, GPUs and C library, and whether the pair fits."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.cli.findings import Finding, Status
from orchestrator.cli.model_checks import in_short
from orchestrator.cli.model_facts import ModelFacts
from orchestrator.local.cores import num_usable_cores
from specgate.cpu_library import InstructionSet, instruction_set, why_not
from specgate.errors import InvalidArgument
from specgate.memory import available_bytes
from specgate.types import Dtype, dtype_on

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
KV_TOKENS = 32_768
"""The least that a service started by a command holds; one by itself takes what memory allows."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One CUDA device that torch can use."""

    name: str
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine, as this process may use it. ``has_driver`` is whether a GPU driver is installed at all."""

    num_cores: int
    free_bytes: int
    gpus: tuple[Gpu, ...] = ()
    has_driver: bool = False


def look_around() -> Machine:
    """Return what is here; asks torch for the GPUs."""
    import torch

    gpus = [
        Gpu(torch.cuda.get_device_name(index), torch.cuda.mem_get_info(index)[0])
        for index in range(torch.cuda.device_count())
    ]
    has_driver = shutil.which("nvidia-smi") is not None
    return Machine(num_usable_cores(), available_bytes(), tuple(gpus), has_driver)


def check_machine(machine: Machine, device: str) -> Iterator[Finding]:
    """Ask whether ``device`` is there, and whether each service can have a core."""
    cores = f"{machine.num_cores} core(s)"
    if machine.num_cores < 2:
        advice = "drafter and verifier will take turns on it; speculation gains nothing here"
        yield Finding("machine", "cores", Status.WARNING, cores, advice)
    else:
        yield Finding("machine", "cores", Status.OK, cores)
    yield _device(machine, device)


def _device(machine: Machine, device: str) -> Finding:
    index = int(device.partition(":")[2] or 0)
    if device.startswith("cuda") and index >= len(machine.gpus):
        problem = f"{device} is missing: torch sees {len(machine.gpus)} GPU(s)"
        advice = "install a torch with CUDA, or take --device cpu"
        return Finding("machine", "device", Status.PROBLEM, problem, advice)
    if machine.has_driver and not machine.gpus:
        advice = "this torch cannot use it; install a torch with CUDA"
        return Finding("machine", "device", Status.WARNING, "there is a GPU driver, but no usable GPU", advice)
    names = ", ".join(f"{gpu.name} ({in_short(gpu.free_bytes)}B free)" for gpu in machine.gpus)
    return Finding("machine", "device", Status.OK, names or "CPU")


def check_library(machine: Machine, device: str) -> Finding:
    """Tell what a CPU computes with: our C library and its instruction set, or torch and why. A GPU needs neither."""
    try:
        chosen, why = instruction_set(), why_not()
    except InvalidArgument as error:
        return Finding("machine", "C library", Status.PROBLEM, str(error), "unset it to take the processor's best")
    if chosen is not InstructionSet.NONE:
        return Finding("machine", "C library", Status.OK, f"computes on the CPU, with {chosen}")
    status = Status.OK if _on_gpu(machine, device) else Status.WARNING
    return Finding("machine", "C library", status, f"torch computes, more slowly: {why}")


def _on_gpu(machine: Machine, device: str) -> bool:
    return bool(machine.gpus) and device != "cpu"


def check_memory(machine: Machine, models: Sequence[ModelFacts], dtype: str, device: str) -> Iterator[Finding]:
    """Compare what weights and KV pages need with what is free where they go."""
    on_gpu = _on_gpu(machine, device)
    stay_short = dtype == Dtype.AUTO and not on_gpu and _has_library()
    dtype = dtype_on(dtype, "cuda" if on_gpu else "cpu")
    needed = sum(_needed_bytes(facts, BYTES[dtype], stay_short) for facts in models)
    index = int(device.partition(":")[2] or 0)
    free = machine.gpus[index].free_bytes if on_gpu and index < len(machine.gpus) else machine.free_bytes
    if not needed:
        return
    where = "GPU" if on_gpu else "main"
    message = (
        f"{in_short(needed)}B in {dtype} (weights, {KV_TOKENS} tokens of KV), {in_short(free)}B of {where} memory free"
    )
    if needed <= free:
        yield Finding("machine", "memory", Status.OK, message)
    else:
        advice = "take fewer --kv-tokens at the services, or smaller models"
        yield Finding("machine", "memory", Status.PROBLEM, message, advice)


def _has_library() -> bool:
    try:
        return instruction_set() is not InstructionSet.NONE
    except InvalidArgument:
        return False


def _needed_bytes(facts: ModelFacts, bytes_each: int, stay_short: bool) -> int:
    """``stay_short``: weights that are stored in bfloat16 or in codes are that in memory."""
    of_weight = BYTES[Dtype.BFLOAT16] if stay_short and facts.are_weights_short else bytes_each
    weights = facts.kept_bytes if stay_short and facts.kept_bytes else (facts.num_parameters or 0) * of_weight
    return weights + KV_TOKENS * (facts.kv_numbers_per_token or 0) * bytes_each
