"""What the proposer counts beside vLLM's own metrics of acceptance."""

import json
from collections import Counter, defaultdict, deque
from pathlib import Path


class Report:
    """Counts, and the last times of ``propose``: where all drafts were there, where some were not, and without any."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._us: dict[str, deque[int]] = defaultdict(lambda: deque(maxlen=4096))

    def step(self, kind: str, seconds: float) -> None:
        """Count a call of ``propose``."""
        self.counts[f"steps_{kind}"] += 1
        self._us[kind].append(round(seconds * 1e6))

    def write(self, path: Path) -> None:
        """Write everything as JSON, microseconds by percentile. Raises OSError."""
        times = {kind: sorted(us.copy()) for kind, us in list(self._us.items())}
        us = {kind: {f"p{p}": one[(len(one) - 1) * p // 100] for p in (50, 90, 99)} for kind, one in times.items()}
        unfinished = path.with_name(f".{path.name}.unfinished")
        unfinished.write_text(json.dumps({**self.counts, "propose_us": us}, indent=2) + "\n", "utf-8")
        unfinished.replace(path)
