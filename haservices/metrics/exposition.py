"""An observation in the text format of Prometheus; needs prometheus-client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)

from haservices.metrics.figures import (
    FAMILIES,
    FIGURES,
    INFO,
    JOBS,
    LATENCIES,
    OTHERS,
    STATES,
    STOPPED,
    figure_of,
    metric_name,
)
from nameservice.observation import Latencies, Observation


__all__ = ["CONTENT_TYPE", "exposition"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_LABEL_COUNT_MAX: Final = 100
"""Values of one label of a family: they are words of ours, and few."""


class _Families:
    """What `generate_latest` asks for metrics."""

    def __init__(self, families: Iterable[Any]) -> None:
        self._families = families

    def collect(self) -> Iterable[Any]:
        return self._families


def exposition(observation: Observation) -> bytes:
    """Return all metrics of *observation*."""
    families: list[Any] = [
        *_figures(observation),
        *_info(observation),
        *_states(observation),
        *_jobs(observation),
        *_stopped(observation),
        *_latencies(observation),
    ]
    registry: Any = _Families(families)
    text: bytes = generate_latest(registry)
    return text


def _figures(observation: Observation) -> Iterable[Any]:
    families: dict[str, Any] = {}
    # Some figures begin when something happens for the first time.  A counter that
    # appears with 1 has not grown, as Prometheus sees it: so it is 0 before.
    counters = {
        name: 0
        for name, figure in FIGURES[observation.role].items()
        if (figure.name or name).endswith("_total")
    } | {
        f"{family.prefix}{value}_total": 0
        for family in FAMILIES[observation.role]
        for value in family.known
    }
    for name, value in (counters | dict(observation.figures)).items():
        found = figure_of(observation.role, name)
        if found is None or isinstance(value, str):
            continue
        metric, figure, labels = found
        family = families.get(metric)
        if family is None:
            is_counter = metric.endswith("_total")
            kind = CounterMetricFamily if is_counter else GaugeMetricFamily
            family = kind(metric, figure.help, labels=list(labels))
            families[metric] = family
        if len(family.samples) < _LABEL_COUNT_MAX:
            family.add_metric(list(labels.values()), value * figure.scale)
    return families.values()


def _info(observation: Observation) -> Iterable[Any]:
    role = observation.role
    labels = {
        name: str(observation.figures[name])
        for name in INFO[role]
        if name in observation.figures
    }
    if labels:
        what = "Names of what serves these metrics."
        yield InfoMetricFamily(metric_name(role, "").rstrip("_"), what, value=labels)


def _states(observation: Observation) -> Iterable[Any]:
    if observation.role != "proxy":
        return
    families = {
        name: GaugeMetricFamily(
            metric_name("proxy", name), what, labels=["job_id", "state"]
        )
        for name, what in STATES.items()
    }
    for state in observation.states:
        values: Mapping[str, float | None] = {
            "state_generation": state.generation,
            "state_last_batch_id": state.batch_id,
            "state_age_seconds": state.age_seconds,
        }
        for name, value in values.items():
            if value is not None:
                families[name].add_metric([state.job_id, state.state_name], value)
    yield from families.values()
    yield GaugeMetricFamily(
        metric_name("proxy", "states_left_out"),
        OTHERS["proxy"]["states_left_out"],
        value=observation.states_left_out,
    )


def _jobs(observation: Observation) -> Iterable[Any]:
    if observation.role != "proxy":
        return
    for name, what in JOBS.items():
        metric = metric_name("proxy", name)
        family = GaugeMetricFamily(metric, what, labels=["job_id"])
        for job in observation.jobs:
            family.add_metric([job.job_id], getattr(job, name.removeprefix("job_")))
        yield family


def _stopped(observation: Observation) -> Iterable[Any]:
    role = observation.role
    if STOPPED in OTHERS[role]:
        family = GaugeMetricFamily(
            metric_name(role, STOPPED),
            OTHERS[role][STOPPED],
            labels=["job_id", "reason"],
        )
        for job in observation.stopped:
            family.add_metric([job.job_id, job.reason], 1)
        yield family


def _latencies(observation: Observation) -> Iterable[Any]:
    role = observation.role
    if LATENCIES not in OTHERS[role]:
        return
    family = HistogramMetricFamily(
        metric_name(role, LATENCIES), OTHERS[role][LATENCIES], labels=["kind"]
    )
    bounds = [*map(str, Latencies.BOUNDS_SECONDS), "+Inf"]
    for kind in observation.latencies:
        total = 0
        buckets = []
        for bound, count in zip(bounds, kind.counts, strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric([kind.kind], buckets, sum_value=kind.sum_seconds)
    yield family
