"""Prometheus metrics, with SGLang's names where they exist."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from specmatrix.engine.server.engine_thread import EngineThread, Ticket

SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class ServerMetrics:
    """Statistics of ended requests, and the engine's state at each scrape."""

    def __init__(self, engine: EngineThread, model: str) -> None:
        self.registry, self._engine = CollectorRegistry(), engine
        self._label = {"model_name": model}
        texts = {
            "prompt_tokens": "Prompt tokens of ended requests.",
            "generation_tokens": "Output tokens of ended requests.",
            "cached_tokens": "Prompt tokens that needed no computation.",
            "num_requests": "Requests that have ended.",
            "num_aborted_requests": "Requests that were aborted, by a call or because the client left.",
        }
        self._counts = {name: self._of(Counter, name, text) for name, text in texts.items()}
        self._first = self._of(Histogram, "time_to_first_token_seconds", "Seconds to the first token.", buckets=SECONDS)
        self._whole = self._of(Histogram, "e2e_request_latency_seconds", "Seconds of a request.", buckets=SECONDS)
        engine.on_end = self.ended

    def _of(self, kind: Any, name: str, text: str, **more: Any) -> Any:  # noqa: ANN401 - a Counter or a Histogram
        return kind(f"sglang:{name}", text, [*self._label], registry=self.registry, **more).labels(**self._label)

    def ended(self, ticket: Ticket) -> None:
        """Count an ended request. Must be called in the event loop."""
        output = ticket.output
        assert output is not None
        self._counts["num_requests"].inc()
        self._counts["prompt_tokens"].inc(output.prompt_tokens)
        self._counts["generation_tokens"].inc(len(output.output_ids))
        self._counts["cached_tokens"].inc(output.cached_tokens)
        if output.finish.reason == "abort":
            self._counts["num_aborted_requests"].inc()
        if ticket.first is not None:
            self._first.observe(ticket.first - ticket.began)
        self._whole.observe(ticket.ended - ticket.began)

    async def text(self) -> bytes:
        """The exposition text."""
        snapshot = CollectorRegistry()
        snapshot.register(_Snapshot(self._label, await self._engine.state()))
        return generate_latest(self.registry) + generate_latest(snapshot)


class _Snapshot:
    """A Prometheus collector of the engine's state at one time."""

    def __init__(self, label: dict[str, str], state: dict[str, Any]) -> None:
        self._label, self._state = label, state

    def collect(self) -> Iterator[Metric]:
        counters, pages = self._state["counters"], self._state["pages"]
        used, rounds = pages["held"] * self._state["readback"]["page_size"], counters["spec.drafted"]
        gauges = (
            ("num_running_reqs", "Requests that run.", self._state["running"]),
            ("num_queue_reqs", "Requests that wait.", self._state["queued"]),
            ("num_used_tokens", "KV slots of requests and sessions.", used),
            ("token_usage", "Share of the KV pages that requests and sessions hold.", pages["held"] / pages["pages"]),
            ("spec_accept_rate", "Accepted share of the draft tokens.", counters["spec.accepted"] / max(1, rounds)),
        )
        for name, text, value in gauges:
            yield self._gauge(f"sglang:{name}", text, value)
        yield self._gauge("specmatrix:kv_pages", "KV pages in all.", pages["pages"])
        yield self._gauge("specmatrix:kv_pages_free", "KV pages that are free.", pages["free"])
        yield self._gauge("specmatrix:kv_pages_cached", "KV pages of the prefix cache.", pages["cached"])
        yield self._gauge("specmatrix:sessions", "Open sessions.", self._state["sessions"])
        events = CounterMetricFamily("specmatrix:engine_events", "The engine's counters.", labels=["event"])
        for name, count in counters.items():
            events.add_metric([name], count)
        yield events

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=[*self._label])
        family.add_metric([*self._label.values()], value)
        return family


def metrics_router(metrics: ServerMetrics) -> APIRouter:
    """GET /metrics."""
    router = APIRouter()

    @router.get("/metrics", response_class=Response)
    async def scrape() -> Response:
        """Counters, gauges and histograms in Prometheus' text format."""
        return Response(await metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return router
