"""``/metrics`` of one service, on a port of its own: read when somebody asks, so a forward knows nothing of it."""

from collections.abc import Iterator
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Info, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from specgate import __version__
from specgate.errors import InvalidArgument
from specgate.rpc.endpoint import join_endpoint
from specgate.service.served import Served


class ServiceMetrics:
    """Sessions, KV tokens and the engine's heartbeat of one service, as a collector of Prometheus's."""

    def __init__(self, served: Served) -> None:
        self._served = served

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; see ``prometheus_client.registry.Collector``."""
        info, admission = self._served.info(), self._served.admission
        used = info.kv_tokens - info.free_kv_tokens
        gauges = {
            "sessions_active": ("Sessions that are open.", info.active_sessions),
            "max_sessions": ("Sessions that may be open at a time.", info.max_sessions),
            "kv_tokens": ("Tokens that the KV pages hold in all.", info.kv_tokens),
            "kv_tokens_used": ("Tokens of the pages that sessions have.", used),
            "kv_cache_usage_perc": ("Share of the KV pages that sessions have, 0 to 1.", used / max(1, info.kv_tokens)),
            "engine_step_age_seconds": ("Since the engine's last heartbeat.", self._served.engine.heartbeat_age_s),
        }
        labels = {"role": info.role, "model_name": info.model}
        for name, (told, value) in gauges.items():
            family: Metric = GaugeMetricFamily(f"specgate_{name}", told, labels=[*labels])
            family.add_sample(f"specgate_{name}", labels, value)
            yield family
        opened = CounterMetricFamily("specgate_sessions", "Sessions that were opened.", labels=[*labels])
        opened.add_metric([*labels.values()], admission.num_opened)
        yield opened
        refused = CounterMetricFamily(
            "specgate_sessions_refused", "Sessions that were not.", labels=[*labels, "reason"]
        )
        for reason, count in admission.refused.items():
            refused.add_metric([*labels.values(), reason], count)
        yield refused


class MetricsServer:
    """Serves ``/metrics`` from a thread of its own.

    Args:
        port: 0 picks a free one.

    Raises:
        InvalidArgument: the port cannot be bound.
    """

    def __init__(self, served: Served, host: str, port: int) -> None:
        registry = CollectorRegistry()
        registry.register(ServiceMetrics(served))
        ProcessCollector(registry=registry)
        Info("specgate_build", "The service's version.", registry=registry).info({"version": __version__})
        self._server: WSGIServer
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise InvalidArgument("--metrics-port", f"{port} on {host} cannot be bound: {error.strerror}") from None
        self.endpoint = join_endpoint(host, self._server.server_port)

    def stop(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
