"""Round traces: what any gate needs to know of a text, and what rounds cost, as JSON lines. See ``record_text``."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from specgate.errors import InvalidArgument
from specgate_lab.replay.machine import SimulatedMachine
from specgate_lab.report import write_whole


@dataclass(frozen=True, slots=True)
class TracedText:
    """One answer: the target's confidence at each emitted position, and whether the draft agrees; None: not known."""

    confidences: tuple[float, ...]
    agrees: tuple[bool | None, ...]

    def __post_init__(self) -> None:
        if len(self.confidences) != len(self.agrees):
            raise InvalidArgument("agrees", f"{len(self.agrees)} entries for {len(self.confidences)} confidences")

    def __len__(self) -> int:
        return len(self.confidences)

    def survivors(self, position: int, gamma: int) -> int:
        """Return how many of ``gamma`` draft tokens from ``position`` on are accepted. An unknown one is not."""
        drafted = self.agrees[position : position + gamma]
        return next((index for index, agrees in enumerate(drafted) if not agrees), len(drafted))


@dataclass(frozen=True, slots=True)
class RoundTrace:
    """Texts, and the machine that they ran on."""

    machine: SimulatedMachine
    texts: tuple[TracedText, ...]


def write_trace(path: Path, trace: RoundTrace) -> None:
    """Write the machine, then a line for each text; confidences to 0.0001. Raises as ``write_whole`` does."""
    texts = [
        {"confidences": [round(one, 4) for one in text.confidences], "agrees": text.agrees} for text in trace.texts
    ]
    lines = [{"machine": asdict(trace.machine)}, *({"text": text} for text in texts)]
    write_whole(path, "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines), "out")


def read_trace(path: Path) -> RoundTrace:
    """Read what ``write_trace`` wrote.

    Raises:
        InvalidArgument: unreadable, or not a trace; names the line.
    """
    machine, texts = None, list[TracedText]()
    for number, line in enumerate(_lines(path), start=1):
        try:
            entry = json.loads(line)
            if "machine" in entry:
                machine = SimulatedMachine(**entry["machine"])
            else:
                texts.append(TracedText(**{name: tuple(values) for name, values in entry["text"].items()}))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidArgument("trace", f"{path} line {number}: {type(error).__name__}: {error}") from None
    if machine is None or not texts:
        raise InvalidArgument("trace", f"{path} holds no machine or no text")
    return RoundTrace(machine, tuple(texts))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise InvalidArgument("trace", f"{path} cannot be read: {error}") from None
