#!/usr/bin/env python3
"""Write the Grafana boards in deploy/observability from the panels below; a test compares.

.venv/bin/python scripts/boards.py
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "deploy" / "observability"
WIDTH, HEIGHT, COLUMNS = 8, 8, 3
DRAFTS = "sum(rate(specgate_spec_decode_num_drafts_total[1m]))"
PROMETHEUS = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph: its unit in Grafana's words, and a query for each line, by the line's legend."""

    title: str
    unit: str
    queries: dict[str, str]


def quantiles(metric: str, by: str = "") -> dict[str, str]:
    """Return the median and the 95th percentile of a histogram."""
    return {
        f"p{share * 100:g}": f"histogram_quantile({share}, sum by (le{by}) (rate(specgate_{metric}_bucket[1m])))"
        for share in (0.5, 0.95)
    }


SERVING = [
    Panel("Tokens a second", "short", {"{{model_name}}": "specgate:tokens_per_second"}),
    Panel("Time to first token", "s", quantiles("time_to_first_token_seconds")),
    Panel("Between two deltas, a token", "s", quantiles("inter_token_latency_seconds")),
    Panel("Whole requests", "s", quantiles("e2e_request_latency_seconds")),
    Panel(
        "Requests",
        "short",
        {
            "running": "sum(specgate_num_requests_running)",
            "waiting": "sum(specgate_num_requests_waiting)",
            "may run": "sum(specgate_max_requests_running)",
        },
    ),
    Panel("Time in the queue", "s", quantiles("request_queue_time_seconds")),
    Panel(
        "Wait for a session, 95 of 100",
        "s",
        {"{{service}} {{outcome}}": quantiles("lease_wait_seconds", ", service, outcome")["p95"]},
    ),
    Panel(
        "Requests that ended, a second",
        "reqps",
        {
            "{{finished_reason}}": "sum by (finished_reason) (rate(specgate_request_success_total[1m]))",
            "refused: {{reason}}": "sum by (reason) (rate(specgate_requests_rejected_total[1m]))",
        },
    ),
    Panel("KV pages in use", "percentunit", {"{{role}}": "specgate:kv_cache_usage"}),
    Panel("Sessions", "short", {"{{role}}": "sum by (role) (specgate_sessions_active)"}),
    Panel("Replicas that answer", "short", {"{{role}}": "sum by (role) (up)"}),
    Panel("Engine: seconds since its heartbeat", "s", {"{{role}}": "max by (role) (specgate_engine_step_age_seconds)"}),
    Panel("Memory of each process", "bytes", {"{{role}} {{instance}}": "process_resident_memory_bytes"}),
]
SPECULATION = [
    Panel("Acceptance", "percentunit", {"{{model_name}}": "specgate:acceptance_rate"}),
    Panel("Tokens a round with a draft", "short", {"{{model_name}}": "specgate:mean_acceptance_length"}),
    Panel(
        "Acceptance by position",
        "percentunit",
        {
            "{{position}}": "sum by (position) (rate(specgate_spec_decode_num_accepted_tokens_per_pos_total[1m])) "
            f"/ on () group_left () {DRAFTS}"
        },
    ),
    Panel("Tokens a second, by who brought them", "short", {"{{source}}": "specgate:tokens_per_second_by_source"}),
    Panel(
        "What the gate decided, a second",
        "ops",
        {"{{decision}}": "sum by (decision) (rate(specgate_gate_decisions_total[1m]))"},
    ),
    Panel("The target's confidence", "percentunit", quantiles("target_confidence")),
    Panel("Phases of a round, median", "s", {"{{phase}}": quantiles("round_seconds", ", phase")["p50"]}),
    Panel(
        "Rounds drafted ahead",
        "percentunit",
        {
            "hits": f"sum(rate(specgate_run_ahead_hits_total[1m])) / {DRAFTS}",
            "followed": f"sum(rate(specgate_follow_ups_total[1m])) / {DRAFTS}",
        },
    ),
    Panel(
        "Services lost, a minute",
        "short",
        {"{{service}}: {{reason}}": "60 * sum by (service, reason) (rate(specgate_fallbacks_total[1m]))"},
    ),
    Panel("Near ties, a minute", "short", {"near ties": "60 * sum(rate(specgate_near_ties_total[1m]))"}),
]
BOARDS = {"serving": ("specgate: serving", SERVING), "speculation": ("specgate: speculation", SPECULATION)}


def board(uid: str, title: str, panels: list[Panel]) -> dict[str, Any]:
    """Return a board as Grafana imports it."""
    return {
        "uid": f"specgate-{uid}",
        "title": title,
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, COLUMNS)
    targets = [
        {"refId": chr(ord("A") + i), "datasource": PROMETHEUS, "expr": query, "legendFormat": legend}
        for i, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "id": number + 1,
        "title": panel.title,
        "type": "timeseries",
        "datasource": PROMETHEUS,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def main() -> None:
    """Write all boards."""
    for uid, (title, panels) in BOARDS.items():
        text = json.dumps(board(uid, title, panels), indent=1) + "\n"
        (FOLDER / f"grafana-{uid}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
