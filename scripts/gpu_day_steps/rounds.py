"""What a round takes beside its forwards, part by part: real rounds of a model of nothing, see ``measure_round``."""

from measure_round import Services, measured_rounds
from round_parts import BESIDE, medians_of

from gpu_day_steps.estimates import OVERHEAD_US
from gpu_day_steps.sizes import VOCAB_SIZE
from gpu_day_steps.step import Context

ROUNDS = 200


def beside_forwards(context: Context) -> str:
    """Return what a greedy round takes beside its forwards, in one process and over gRPC."""
    num_rounds, vocab_size = (5, 512) if context.where.dry else (ROUNDS, VOCAB_SIZE)
    services = Services.ONE_PROCESS, Services.GRPC
    beside: dict[Services, float] = {}
    for way, rounds in measured_rounds(vocab_size, num_rounds, context.where.device, services).items():
        parts = medians_of(rounds)
        beside.setdefault(way.services, parts[BESIDE])
        context.row(round=str(way), **{f"{part}, µs": round(us, 1) for part, us in parts.items()})
    if not context.where.dry:
        for where, expected in OVERHEAD_US.items():
            context.compare(f"µs beside the forwards, {where}", beside[where], expected)
    return "; ".join(f"{where} {us:.0f} µs" for where, us in beside.items())
