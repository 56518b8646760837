"""Round traces: what any gate needs to know of a text, and what rounds cost, as JSON lines. See ``record_text``."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from specgate.errors import InvalidArgument
from specgate_lab.replay.machine import SimulatedMachine
from specgate_lab.report import write_whole


@dataclass(frozen=True, slots=True)
class TracedText:
    """One answer, by emitted position: the target's confidence, whether the draft agrees, and the draft's probability
    of the token that it drafted there, after the target's own tokens. None: not known.

    ``draft_confidences`` is empty where none was recorded.
    """

    confidences: tuple[float, ...]
    agrees: tuple[bool | None, ...]
    draft_confidences: tuple[float | None, ...] = ()

    def __post_init__(self) -> None:
        for name in ("agrees", "draft_confidences"):
            num = len(getattr(self, name))
            if num != len(self) and (num or name == "agrees"):
                raise InvalidArgument(name, f"{num} entries for {len(self)} confidences")

    def __len__(self) -> int:
        return len(self.confidences)

    def survivors(self, position: int, gamma: int) -> int:
        """Return how many of ``gamma`` draft tokens from ``position`` on are accepted. An unknown one is not."""
        drafted = self.agrees[position : position + gamma]
        return next((index for index, agrees in enumerate(drafted) if not agrees), len(drafted))

    def drafted(self, position: int, gamma: int, stop_below: float) -> int:
        """Return how long a draft of ``gamma`` tokens from ``position`` on is, if it ends with its first one below
        ``stop_below``.

        One of unknown probability ends no draft. After a token that the target rejects a draft is taken to be as sure
        as after the target's own.
        """
        asked = self.draft_confidences[position : position + gamma]
        unsure = (number for number, one in enumerate(asked, 1) if one is not None and one < stop_below)
        return next(unsure, gamma)


@dataclass(frozen=True, slots=True)
class RoundTrace:
    """Texts, and the machine that they ran on."""

    machine: SimulatedMachine
    texts: tuple[TracedText, ...]

    @property
    def knows_draft(self) -> bool:
        """Whether the draft's probabilities were recorded, without which no draft stops early."""
        return all(any(one is not None for one in text.draft_confidences) for text in self.texts)


def write_trace(path: Path, trace: RoundTrace) -> None:
    """Write the machine, then a line for each text; confidences to 0.0001, the draft's at least that.

    Raises as ``write_whole`` does.
    """
    texts = [
        {
            "confidences": [round(one, 4) for one in text.confidences],
            "agrees": text.agrees,
            "draft_confidences": [_rounded(one) for one in text.draft_confidences],
        }
        for text in trace.texts
    ]
    lines = [{"machine": asdict(trace.machine)}, *({"text": text} for text in texts)]
    write_whole(path, "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines), "out")


def _rounded(confidence: float | None) -> float | None:
    return None if confidence is None else max(round(confidence, 4), 0.0001)


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
