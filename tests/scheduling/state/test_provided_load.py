"""What a metric provider says of nodes: joined, examined, kept with its age, and used with what it cannot contain."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.api.metric_provider import MetricProviderSettings, PrometheusSettings
from concerto.api.schedulingprofile import LoadSettings
from concerto.api.score_arguments import ScoreSettings
from concerto.scheduling.coverage import Coverage, coverage
from concerto.scheduling.cycle import schedule
from concerto.scheduling.plugins.load.node_load import NodeLoad
from concerto.scheduling.state.provided_load import Series
from support.scheduling_builders import GI, NOW, capacity, cluster_state, load, node, pod, profile, query

NAME = "packed"
SETTINGS = LoadSettings(provider=NAME)
MACHINE = {"cpu": 4000, "memory": 8 * GI}


def nodes(*names):
    return [node(name, capacity=MACHINE, addresses=(f"10.0.0.{i}",)) for i, name in enumerate(names, 1)]


def series(values, statistic="average", resource="cpu", *, at=500.0, covered=300.0, **more):
    """By node: a value, or a value and its time by the provider's clock, which is far from ours."""
    reported = {name: value if isinstance(value, tuple) else (value, at) for name, value in values.items()}
    return Series(resource, statistic, reported, covered, **more)


def measured(cluster, statistic="average", resource="cpu", oldest=-np.inf):
    found = cluster.load.measured(resource, statistic, SETTINGS, slice(0, cluster.size), oldest)
    return {name: float(found[row]) for name, row in cluster.row_of.items() if not np.isnan(found[row])}


def test_nodes_go_by_name_or_by_internal_address_and_who_is_neither_is_listed():
    cluster = cluster_state(nodes("a", "b", "c"))
    joined = cluster.provide(NAME, [series({"a": 0.1, "10.0.0.2": 0.2, "x": 0.3, "w": 0.4})], NOW)
    assert measured(cluster) == {"a": 0.1, "b": 0.2}
    assert (joined.unmatched, joined.unmatched_count) == (("w", "x"), 2)


def test_by_an_address_that_two_nodes_say_they_have_goes_neither():
    cluster = cluster_state([*nodes("a", "b"), node("thief", capacity=MACHINE, addresses=("10.0.0.2", "a"))])
    joined = cluster.provide(NAME, [series({"a": 0.1, "10.0.0.2": 0.2})], NOW)
    assert measured(cluster) == {"a": 0.1}
    assert joined.unmatched == ("10.0.0.2",)


def test_however_many_match_nothing_few_are_reported():
    joined = cluster_state(nodes("a")).provide(NAME, [series({f"x{i:04d}": 0.1 for i in range(1000)})], NOW)
    assert joined.unmatched == tuple(f"x{i:04d}" for i in range(10))
    assert joined.unmatched_count == 1000


def test_of_a_long_name_that_is_no_nodes_the_beginning_is_reported():
    joined = cluster_state(nodes("a")).provide(NAME, [series({"x" * 100_000: 0.1})], NOW)
    assert joined.unmatched == ("x" * 256,)


BAD = {
    "not a number": (float("nan"), {"NotANumber": 1}),
    "infinite": (float("inf"), {"NotANumber": 1}),
    "infinite the other way": (float("-inf"), {"NotANumber": 1}),
    "negative": (-0.01, {"Negative": 1}),
    "in percent": (35.0, {"AboveOne": 1}),
    "somewhat over, as rates come out": (1.04, {}),
    "all of it": (1.0, {}),
    "none": (0.0, {}),
}


@pytest.mark.parametrize(("value", "rejected"), BAD.values(), ids=BAD)
def test_a_value_that_cannot_be_is_missing_and_counted(value, rejected):
    cluster = cluster_state(nodes("a", "b"))
    cluster.provide(NAME, [series({"a": 0.5, "b": 0.5})], NOW)
    joined = cluster.provide(NAME, [series({"a": value, "b": 0.25}, at=515.0)], NOW + 15)
    assert {k: v for k, v in joined.rejected.items() if v} == rejected
    assert measured(cluster) == {"b": 0.25} | ({} if rejected else {"a": min(value, 1.0)})


TWICE = {
    "by one name": ({"a": 0.5}, {"b"}, 1),
    "by its name and its address": ({"a": 0.5, "b": 0.1, "10.0.0.2": 0.9}, (), 1),
    "by its name, and twice by its address": ({"a": 0.5, "b": 0.1}, {"10.0.0.2"}, 1),
    "and so is what is no node": ({"a": 0.5}, {"b", "x"}, 2),
}


@pytest.mark.parametrize(("said", "ambiguous", "count"), TWICE.values(), ids=TWICE)
def test_a_node_of_which_a_query_says_two_things_has_no_metric(said, ambiguous, count):
    cluster = cluster_state(nodes("a", "b"))
    cluster.provide(NAME, [series({"b": 0.3})], NOW)
    joined = cluster.provide(NAME, [series(said, ambiguous=frozenset(ambiguous))], NOW)
    assert joined.rejected["Ambiguous"] == count
    assert measured(cluster) == {"a": 0.5}


def test_amounts_are_taken_as_parts_of_the_machine():
    cluster = cluster_state([*nodes("a"), node("bare", allocatable={"cpu": 0, "memory": 0})])
    answer = [
        series({"a": 1000.0, "bare": 10.0}, "latest", amounts=True),
        series({"a": 2.0 * GI}, "latest", "memory", amounts=True),
    ]
    joined = cluster.provide(NAME, answer, NOW)
    assert measured(cluster, "latest") == {"a": 0.25}
    assert measured(cluster, "latest", "memory") == {"a": 0.25}
    assert joined.rejected["NotANumber"] == 1


def test_what_an_answer_does_not_mention_grows_old():
    cluster = cluster_state(nodes("a", "b"))
    cluster.provide(NAME, [series({"a": 0.1, "b": 0.2}), series({"a": 0.3}, "deviation")], NOW)
    cluster.provide(NAME, [series({"a": 0.5}, at=560.0)], NOW + 60)  # b, and the other query, are gone
    assert measured(cluster, oldest=NOW) == {"a": 0.5, "b": 0.2}
    assert measured(cluster, "deviation", oldest=NOW) == {"a": 0.3}
    assert measured(cluster, oldest=NOW + 1) == {"a": 0.5}
    assert measured(cluster, "deviation", oldest=NOW + 1) == {}


CLOCKS = {
    "right": [(500.0, 0), (515.0, 15)],
    "an hour ahead of what it was": [(500.0, 0), (4115.0, 15)],
    "an hour back": [(5000.0, 0), (1415.0, 15)],
    "before the epoch": [(500.0, 0), (-10.0, 15)],
    "standing still: the same is said for ever": [(500.0, 0), (500.0, 0)],
}


@pytest.mark.parametrize("said", CLOCKS.values(), ids=CLOCKS)
@pytest.mark.parametrize("behind", [0, 40, -3600, 3600], ids=lambda s: f"b's clock {s} s behind")
def test_a_clock_that_is_wrong_or_jumps_makes_nothing_fresh_or_stale(said, behind):
    cluster = cluster_state(nodes("a", "b"))
    for (at, _), asked in zip(said, (0, 15)):
        cluster.provide(NAME, [series({"a": (0.5, at), "b": (0.5, at - behind)})], NOW + asked)
    assert cluster.load.measured_at(NAME, slice(0, cluster.size)).tolist()[:2] == [NOW + said[-1][1]] * 2


@pytest.mark.parametrize("at", [float("nan"), float("inf")])
def test_a_value_of_no_time_is_no_value(at):
    cluster = cluster_state(nodes("a", "b"))
    joined = cluster.provide(NAME, [series({"a": (0.5, at), "b": 0.5})], NOW)
    assert (joined.rejected["NotANumber"], measured(cluster)) == (1, {"b": 0.5})


def test_a_node_that_is_gone_leaves_nothing_to_the_next_in_its_row():
    cluster = cluster_state(nodes("a", "b"))
    cluster.provide(NAME, [series({"a": 0.1, "b": 0.2})], NOW)
    cluster.remove_node("a")
    for view in nodes("c", "d"):
        cluster.set_node(view)
    assert measured(cluster) == {"b": 0.2}


def test_providers_of_two_profiles_know_nothing_of_each_other_and_rows_grow_under_them():
    cluster = cluster_state(nodes("a"))
    cluster.provide(NAME, [series({"a": 0.1})], NOW)
    cluster.provide("other", [series({"a": 0.9})], NOW)
    for i in range(200):
        cluster.set_node(node(f"more-{i}"))
    assert measured(cluster) == {"a": 0.1}
    cluster.load.forget_provider(NAME)
    assert measured(cluster) == {}
    assert cluster.load.measured("cpu", "average", LoadSettings(provider="other"), np.array([0]))[0] == 0.9


# --- pods that its windows do not wholly contain


def placed(name="p", *, age=None, on="a", **over):
    """A pod that its kubelet took over `age` seconds before NOW; predicted use 300m and 100 bytes."""
    minutes, rest = divmod(int(NOW - (age or 0)), 60)
    status = {} if age is None else {"startTime": f"1970-01-01T00:{minutes:02d}:{rest:02d}Z"}
    return pod(name, requests={"cpu": "200m", "memory": "100"}, nodeName=on, status=status, **over)


PODS = {
    "not started": (None, None, 300.0),
    "half the window, on a node without an agent": (150, None, 150.0),
    "as old as the window": (300, None, 0.0),
    "started, but its node's agent has not counted it: it pulls its image": (150, False, 300.0),
    "counted by the agent since it started": (150, True, 150.0),
}


@pytest.mark.parametrize(("age", "seen", "expected"), PODS.values(), ids=PODS)
@pytest.mark.parametrize("pod_first", [True, False])
def test_what_a_mean_does_not_contain_is_added(age, seen, expected, pod_first):
    agents = [] if seen is None else [capacity("a", observed=("uid-p",) if seen else (), windows=load((0.9, 0.0)))]
    cluster = cluster_state(nodes("a"), [placed(age=age)] if pod_first else [], agents)
    cluster.provide(NAME, [series({"a": 0.5})], NOW)
    rows = np.array([0])
    if not pod_first:
        cluster.load.recent("cpu", SETTINGS, rows)
        cluster.set_pod(placed(age=age), NOW)
    assert cluster.load.recent("cpu", SETTINGS, rows) == pytest.approx([expected])
    # of the memory nothing is measured: all of it is still to come
    assert cluster.load.recent("memory", SETTINGS, rows) == pytest.approx([100.0])


def test_a_pod_that_starts_in_the_second_of_its_creation_is_not_added_for_ever():
    cluster = cluster_state(nodes("a"), [placed(created="1970-01-01T00:14:10Z")])
    cluster.provide(NAME, [series({"a": 0.5})], NOW)
    assert cluster.load.recent("cpu", SETTINGS, np.array([0])) == pytest.approx([300.0])
    cluster.set_pod(placed(age=150, created="1970-01-01T00:14:10Z"), NOW)
    assert cluster.load.recent("cpu", SETTINGS, np.array([0])) == pytest.approx([150.0])


@pytest.mark.parametrize(("age", "left"), [(300, 0.0), (150, 150.0), (None, 300.0)])
def test_what_a_mean_contains_of_a_pod_that_ended_is_taken_off_what_young_pods_add(age, left):
    cluster = cluster_state(nodes("a"), [placed("old", age=age)])
    cluster.provide(NAME, [series({"a": 0.5})], NOW)
    cluster.remove_pod("uid-old")
    cluster.set_pod(placed("young"), NOW)
    assert cluster.load.recent("cpu", SETTINGS, np.array([0])) == pytest.approx([left])


def test_a_dead_agent_has_no_say_in_what_a_provider_contains():
    agent = capacity("a", windows=load((0.9, 0.0)), at=NOW - 600)
    cluster = cluster_state(nodes("a"), [placed(age=400)])
    cluster.set_capacity(agent, NOW - 600)
    cluster.provide(NAME, [series({"a": 0.5})], NOW)
    assert cluster.load.recent("cpu", SETTINGS, np.array([0])) == pytest.approx([0.0])


def test_the_latest_value_contains_a_pod_as_soon_as_its_own_window_does():
    cluster = cluster_state(nodes("a"), [placed("p", age=12), placed("q", age=3)])
    cluster.provide(NAME, [series({"a": 0.5}, "latest", covered=6.0)], NOW)
    assert cluster.load.recent("cpu", SETTINGS, np.array([0])) == pytest.approx([150.0])
    cluster.set_pod(placed("r"), NOW)
    assert cluster.load.recent("cpu", SETTINGS, np.array([0])) == pytest.approx([450.0])
    cluster.set_pod(placed("r", age=0), NOW)
    cluster.provide(NAME, [series({"a": 0.5}, "latest", at=506.0, covered=6.0)], NOW + 6)
    assert cluster.load.recent("cpu", SETTINGS, np.array([0])) == pytest.approx([0.0])


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(), st.floats(0, 1e9)), max_size=30))
def test_whatever_a_provider_says_loads_are_fractions_or_missing(said):
    cluster = cluster_state(nodes("a", "b"), [placed(age=60)])
    for step, (name, value, at) in enumerate(said):
        cluster.provide(NAME, [series({name: (value, at)})], NOW + step)
    found = cluster.load.measured("cpu", "average", SETTINGS, slice(0, 2))
    assert all(np.isnan(v) or 0.0 <= v <= 1.0 for v in found)
    assert (cluster.load.measured_at(NAME, slice(0, 2)) <= NOW + len(said)).all()
    assert 0.0 <= cluster.load.recent("cpu", SETTINGS, np.array([0]))[0] <= 300.0


# --- profiles


def by_provider(**over):
    return profile(
        NAME,
        scores=(ScoreSettings("TargetLoadPacking", 2), ScoreSettings("LoadVariationRiskBalancing")),
        load=SETTINGS,
        metric_provider=asks(cpu=BOTH, memory=BOTH),
        stale_after_seconds=600.0,
        **over,
    )


def choose(cluster, now=NOW):
    waiting = pod("w", schedulerName=NAME, requests={"cpu": "100m"})
    result = schedule(cluster, [waiting], {NAME: by_provider()}, now=now, generator=np.random.default_rng(1))
    return result.decisions[0], dict(result.abstentions)


def test_scores_follow_the_provider_and_not_the_agents():
    cluster = cluster_state(
        nodes("a", "b"), (), [capacity("a", windows=load((0.3, 0.0))), capacity("b", windows=load((0.9, 0.0)))]
    )
    cluster.provide(NAME, [series({"a": 0.9, "b": 0.3}), series({"a": 0.0, "b": 0.0}, "deviation")], NOW)
    assert NodeLoad.of(query(cluster, pod(), load=SETTINGS)).mean("cpu", slice(0, 2)).tolist() == [0.9, 0.3]
    decision, _ = choose(cluster)
    assert decision.assignment.node == "b"


def test_agents_that_are_dead_do_not_matter_to_a_provider_nor_the_other_way_round():
    cluster = cluster_state(nodes("a", "b"))
    cluster.provide(NAME, [series({"a": 0.9, "b": 0.3})], NOW)
    decision, abstentions = choose(cluster)
    # the memory and the deviation are nobody's, and the cpu is enough
    assert (decision.assignment.node, decision.by_allocation, abstentions) == ("b", False, {})


def test_a_provider_that_is_silent_for_too_long_leaves_it_to_requests():
    old = {"startTime": "1970-01-01T00:05:00Z"}
    cluster = cluster_state(nodes("a", "b"), [pod("big", requests={"cpu": "2"}, nodeName="b", status=old)])
    cluster.provide(NAME, [series({"a": 0.9, "b": 0.3})], NOW)
    decision, _ = choose(cluster, NOW + 599)
    assert (decision.assignment.node, decision.by_allocation) == ("b", False)
    cluster.forget("uid-w")
    decision, abstentions = choose(cluster, NOW + 601)
    assert (decision.assignment.node, decision.by_allocation) == ("b", True), "best fit"
    assert abstentions == {(NAME, "TargetLoadPacking"): 2, (NAME, "LoadVariationRiskBalancing"): 2}


def counted(known: Coverage) -> Coverage:
    """Without the scores, which other tests are about."""
    return replace(known, affected=())


def test_coverage_counts_each_node_once_and_names_those_without():
    cluster = cluster_state(nodes("a", "b", "c", "d"))
    for name, age in (("c", 700), ("b", 70), ("a", 0)):
        cluster.provide(NAME, [series({name: 0.1})], NOW - age)
    assert counted(coverage(cluster, by_provider(), NOW)) == Coverage("Prometheus", 1, 1, 2, ("c", "d"))
    agents = profile(scores=(ScoreSettings("TargetLoadPacking"),))
    cluster.set_capacity(capacity("a", windows=load((0.5, 0.1))), NOW)
    cluster.set_capacity(capacity("b", windows=load((0.5, 0.1))), NOW - 100)
    cluster.set_capacity(capacity("c", windows=load(None)), NOW)
    assert counted(coverage(cluster, agents, NOW)) == Coverage("Agents", 1, 1, 2, ("c", "d"))
    assert counted(coverage(cluster, profile(), NOW)) == Coverage("Agents", 2, 1, 1, ("d",))


def asks(**queries):
    """A Prometheus that is asked so, by resource and statistic."""
    raw = {"address": "https://p", "queries": {r: dict.fromkeys(names, "x") for r, names in queries.items()}}
    return MetricProviderSettings("Prometheus", prometheus=PrometheusSettings.from_raw(raw))


BOTH = ["average", "standardDeviation"]
LACKING = {
    "agents report everything": (MetricProviderSettings(), {}),
    "windows are made of what metrics-server reports": (MetricProviderSettings("KubernetesMetricsServer"), {}),
    "all is asked for": (asks(cpu=BOTH, memory=BOTH), {}),
    "the latest stands for the mean": (asks(cpu=["latest", "standardDeviation"], memory=BOTH), {}),
    "no deviation of the memory": (
        asks(cpu=BOTH, memory=["latest"]),
        {"LoadVariationRiskBalancing": ("memory.standardDeviation",)},
    ),
    "nothing of the cpu": (
        asks(memory=BOTH),
        {
            "TargetLoadPacking": ("cpu.average",),
            "LoadVariationRiskBalancing": ("cpu.average", "cpu.standardDeviation"),
        },
    ),
}


@pytest.mark.parametrize(("provider", "lacking"), LACKING.values(), ids=LACKING)
def test_scores_that_go_without_something_are_reported_with_what_they_lack(provider, lacking):
    names = ("Capacity", "TaintToleration", "TargetLoadPacking", "LoadVariationRiskBalancing")
    asked = profile(NAME, scores=tuple(map(ScoreSettings, names)), metric_provider=provider)
    assert dict(coverage(cluster_state(nodes("a")), asked, NOW).lacking) == lacking
