"""``orchestrator status --watch``: live figures of a running system, from the metrics of its replicas."""

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from orchestrator.cli.answering import KEY_VARIABLE
from orchestrator.terminal.tables import number, table_of
from specgate.errors import InvalidArgument, ServiceUnavailable

PREFIX = "specgate_"
ANSWER_S = 5.0
EVERY_S = 2.0
SOURCES = "tokens_total"


@dataclass(slots=True)
class Look:
    """All that was read at one moment. ``sums`` are of all gateways, by name; ``replicas`` are each one's own."""

    at_s: float
    sums: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    replicas: list[tuple[str, str, Mapping[str, float]]] = field(default_factory=list)


def look(url: str) -> Look:
    """Read the metrics of all replicas that the gateway at ``url`` knows of.

    Raises:
        ServiceUnavailable: the gateway does not answer, or refuses, or it is something else that answers.
        InvalidArgument: ``url`` is none.
    """
    url = url.rstrip("/")
    found = Look(time.monotonic())
    for role, name, endpoint, scheme in _targets(f"{url}/metrics/targets"):
        try:
            # Services ask for no key, and speak plain text: it would travel so that others can read it.
            text = _read(f"{url if endpoint in url else f'{scheme}://{endpoint}'}/metrics", with_key=role == "gateway")
        except ServiceUnavailable:
            found.replicas.append((role, name, {}))
            continue
        _add(found, role, name, text)
    return found


def _targets(url: str) -> list[tuple[str, str, str, str]]:
    """Return each replica's role, name, HOST:PORT and scheme."""
    text = _read(url)
    try:
        found = [(one["labels"], one["targets"][0]) for one in json.loads(text)]
        return [(of["role"], of["replica"], where, of.get("__scheme__", "http")) for of, where in found]
    except (ValueError, LookupError, TypeError):
        raise ServiceUnavailable(f"{url} tells no replicas: give the address of a gateway's /metrics") from None


def _read(url: str, *, with_key: bool = True) -> str:
    key = os.environ.get(KEY_VARIABLE) if with_key else None
    try:
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            text: str = answer.read().decode()
            return text
    except urllib.error.HTTPError as error:
        hint = f"; give a key of the role metrics in {KEY_VARIABLE}" if error.code in (401, 403) else ""
        raise ServiceUnavailable(f"{url} answers {error.code}{hint}") from None
    except http.client.HTTPException:
        raise ServiceUnavailable(f"what answers at {url} speaks no HTTP, such as the port of the gRPC API") from None
    except OSError as error:
        raise ServiceUnavailable(f"{url} does not answer: {error}") from None
    except ValueError as error:
        raise InvalidArgument("url", f"{url!r} is none: {error}") from None


def _add(found: Look, role: str, name: str, text: str) -> None:
    own: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            short = sample.name.removeprefix(PREFIX)
            if short == SOURCES:
                found.sources[sample.labels["source"]] += int(sample.value)
            elif sample.labels.keys() <= {"model_name", "role"}:
                own[short] = sample.value
    found.replicas.append((role, name, own))
    if role == "gateway":
        found.sums.update(own)


def shown(before: Look, now: Look) -> RenderableType:
    """Return what happened between two looks."""
    since_s = max(1e-9, now.at_s - before.at_s)
    gone = _rise(before.sums, now.sums)

    def ratio(part: str, whole: str) -> float | None:
        return gone[part] / gone[whole] if gone[whole] > 0 else None

    acceptance = ratio("spec_decode_num_accepted_tokens_total", "spec_decode_num_draft_tokens_total")
    drafts = ratio("spec_decode_num_accepted_tokens_total", "spec_decode_num_drafts_total")
    first_s = ratio("time_to_first_token_seconds_sum", "time_to_first_token_seconds_count")
    figures = {
        "tokens/s": number(gone["generation_tokens_total"] / since_s, ".1f"),
        "acceptance": number(acceptance, ".0%"),
        "tokens a round": number(None if drafts is None else 1 + drafts, ".2f"),
        "first token ms": number(None if first_s is None else 1000 * first_s, ".0f"),
        "running": f"{now.sums['num_requests_running']:.0f}/{now.sums['max_requests_running']:.0f}",
        "waiting": f"{now.sums['num_requests_waiting']:.0f}/{now.sums['max_requests_waiting']:.0f}",
    }
    sources = _rise(before.sources, now.sources)
    return Group(_figures(figures), Text(_shares(sources)), _replicas(now.replicas))


def _rise(before: Counter[str], now: Counter[str]) -> Counter[str]:
    """Return by how much counts have risen; one that fell, because a gateway is new or gone, has not."""
    return Counter({name: max(0, value - before[name]) for name, value in now.items()})


def _figures(figures: Mapping[str, str]) -> Table:
    columns = [(name, lambda row, name=name: row[name]) for name in figures]
    return table_of([figures], columns, num_names=0)


def _shares(sources: Mapping[str, int]) -> str:
    total = sum(sources.values())
    shares = (f"{name} {count / total:.0%}" for name, count in sorted(sources.items()) if count)
    return "tokens by source: " + ("  ".join(shares) if total else "none")


def _replicas(replicas: Sequence[tuple[str, str, Mapping[str, float]]]) -> Table:
    def share(own: Mapping[str, float], used: str, most: str) -> str:
        return f"{own[used]:,.0f}/{own[most]:,.0f}" if most in own else "–"

    columns = (
        ("role", lambda one: one[0]),
        ("replica", lambda one: one[1]),
        ("state", lambda one: "answers" if one[2] else "does not answer"),
        ("sessions", lambda one: share(one[2], "sessions_active", "max_sessions")),
        ("KV tokens", lambda one: share(one[2], "kv_tokens_used", "kv_tokens")),
        ("heartbeat s", lambda one: number(one[2].get("engine_step_age_seconds"), ".1f")),
        ("memory MB", lambda one: number(one[2].get("process_resident_memory_bytes", 0.0) / 1e6, ",.0f")),
    )
    return table_of(replicas, columns, num_names=3, style_of=lambda one: None if one[2] else "red")


def watch_replicas(console: Console, url: str, every_s: float = EVERY_S, times: int | None = None) -> None:
    """Show it again and again, ``times`` times or until Ctrl-C. Raises: see ``look``."""
    pictures = _pictures(url, every_s, times)
    if not console.is_terminal:
        for picture in pictures:
            console.print(picture)
        return
    with Live(console=console, auto_refresh=False, screen=False) as live:
        for picture in pictures:
            live.update(picture, refresh=True)


def _pictures(url: str, every_s: float, times: int | None) -> Iterator[RenderableType]:
    before = look(url)
    while times is None or times > 0:
        time.sleep(every_s)
        now = look(url)
        yield shown(before, now)
        before, times = now, None if times is None else times - 1
