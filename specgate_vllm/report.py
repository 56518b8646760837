"""What the proposer counts beside vLLM's own metrics of acceptance."""

import json
import time
from collections import Counter, defaultdict, deque
from pathlib import Path
from typing import Any

WRITE_S = 2.0


class Report:
    """Counts, and the last times of ``propose``: where all drafts were there, where some were not, and without any."""

    def __init__(self, file: str = "") -> None:
        self._file = Path(file) if file else None
        self._written_s = 0.0
        self.counts: Counter[str] = Counter()
        self._us: dict[str, deque[int]] = defaultdict(lambda: deque(maxlen=4096))

    def step(self, kind: str, seconds: float) -> None:
        """Count a call of ``propose``."""
        self.counts[f"steps_{kind}"] += 1
        self._us[kind].append(round(seconds * 1e6))

    def write(self) -> None:
        """Write the file, if there is one and it is old: JSON, microseconds by percentile. Raises OSError."""
        if self._file is None or time.monotonic() - self._written_s < WRITE_S:
            return
        self._written_s = time.monotonic()
        times = {kind: sorted(us.copy()) for kind, us in list(self._us.items())}
        us = {kind: {f"p{p}": one[(len(one) - 1) * p // 100] for p in (50, 90, 99)} for kind, one in times.items()}
        unfinished = self._file.with_name(f".{self._file.name}.unfinished")
        values: dict[str, Any] = {**dict(self.counts), "propose_us": us}
        unfinished.write_text(json.dumps(values, indent=2) + "\n", "utf-8")
        unfinished.replace(self._file)
