"""What the agent's metrics look like to Prometheus' own client library."""

from __future__ import annotations

import math
import string

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from concerto_agent.exposition import NO_LABEL, Metric, exposition
from concerto_agent.metrics import Counters, Gauges, describe
from concerto_agent.pin_counts import PinCounts

TEXTS = st.text(string.ascii_letters + string.digits + ' \\"\nn{}=,#é', max_size=12)


def read(text: str) -> dict[str, dict[str, float]]:
    """By the name of the metric, its numbers by the label's value."""
    return {
        family.name + "_total" * (family.type == "counter"): {
            next(iter(sample.labels.values()), NO_LABEL): sample.value for sample in family.samples
        }
        for family in text_string_to_metric_families(text)
    }


@given(st.dictionaries(TEXTS, st.floats(allow_nan=False)), TEXTS)
def test_any_label_and_number_is_read_as_it_was(values, text):
    found = read(exposition([Metric("m", "gauge", text, values, "l"), Metric("after", "gauge", "", {NO_LABEL: 1})]))
    assert found == {"m": values, "after": {NO_LABEL: 1.0}}


def test_what_is_unknown_is_not_a_number():
    assert math.isnan(read(exposition([Metric("m", "gauge", "", {NO_LABEL: math.nan})]))["m"][NO_LABEL])


def test_metrics_without_values_are_described():
    text = exposition(describe(Counters(), Gauges()))
    assert "# TYPE concerto_agent_nri_containers_total counter\n" in text
    assert "\nconcerto_agent_nri_containers_total" not in text


def test_the_agents_numbers_are_exposed():
    counters = Counters(samples=7, missed=1)
    counters.invalid["cpu"] += 2
    pins = PinCounts({"shared": 3}, {"Applied": 4}, 5, created={"Bound": 6})
    found = read(exposition(describe(counters, Gauges(3.5, 2, {"memory": 0.25}, pins=lambda: pins))))
    assert found["concerto_agent_samples_total"] == {NO_LABEL: 7.0}
    assert found["concerto_agent_invalid_readings_total"] == {"cpu": 2.0}
    assert found["concerto_agent_capacity_pods"] == {NO_LABEL: 3.5}
    assert found["concerto_agent_usage_ratio"] == {"memory": 0.25}
    assert found["concerto_agent_cpus"] == {"shared": 3.0}
    assert found["concerto_agent_nri_containers_total"] == {"Bound": 6.0}
