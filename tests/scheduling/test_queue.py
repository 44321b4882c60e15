import math

from concerto.api.selectors import LabelSelector
from concerto.api.volumes import ClaimKey
from concerto.scheduling.queue import MAX_FLUSHED, MAX_OF_POD_GROUP, MAX_REGROUPED, Queue
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.signatures import PodSignatures
from support.scheduling_builders import pod
from support.step_counts import steps_of
from support.volume_builders import mounts

NOW = 1000.0


def queue(*pods, signatures=None):
    made = Queue(signatures=signatures)
    for p in pods:
        made.set(p)
    return made


def heads(q, now=NOW, limit=250):
    return [p.name for p in q.heads(now, limit)]


def young(name, seconds, **over):
    return pod(name, created=f"2026-03-01T12:00:{seconds:02}Z", **over)


def big(name, **over):
    """A pod of another template."""
    return pod(name, requests={"cpu": "2"}, **over)


class CountedSignatures(PodSignatures):
    """Counts how many signatures are computed."""

    computed = 0

    def of(self, pod):
        self.computed += 1
        return super().of(pod)


def test_a_user_who_makes_ever_new_terms_has_a_part_of_the_pods_grouped_anew_with_each_cycle():
    signatures = CountedSignatures()
    count = 2 * MAX_REGROUPED + 1
    q = queue(*(pod(f"p{i}", labels={"a": str(i)}) for i in range(count)), signatures=signatures)
    assert len(q._groups) == 1
    signatures.computed = 0
    for cycle in range(3):
        for i in range(count):  # a value that names each pod
            signatures.add_selector(LabelSelector.from_raw({"matchLabels": {"a": str(i)}}))
        signatures.add_selector(LabelSelector.from_raw({"matchLabels": {f"new-{cycle}": "x"}}))
        heads(q)
    assert signatures.computed <= 3 * MAX_REGROUPED
    assert len(q._groups) == count, "each has had its turn"
    q.remove("uid-p0")
    heads(q)
    assert len(q._groups) == count - 1


def test_what_a_cycle_begins_with_does_not_grow_with_the_pods_of_which_each_is_unlike_the_others():
    def steps(count):
        q = queue(*(pod(f"p{i}", nodeSelector={"of": str(i)}) for i in range(count)))
        next(q.heads(NOW))
        q.mark_all([("uid-p0", Change.CAPACITY, False)], NOW)

        def cycle():
            looked_at = q.heads(NOW)
            q.take(next(looked_at).uid)
            q.mark_all([(next(looked_at).uid, Change.CAPACITY, False)], NOW)
            q.requeue(Change.CAPACITY)

        return steps_of(cycle)

    assert steps(2000) < 1.2 * steps(200)


def test_a_pod_that_joins_a_pod_group_costs_the_same_however_many_unlike_pods_the_group_has():
    def steps(count):
        member = {"schedulingGroup": {"podGroupName": "g"}}
        q = queue(*(pod(f"p{i}", nodeSelector={"of": str(i)}, **member) for i in range(count)))
        q.mark_pod_group(("default", "g"), Change.NODE, NOW)
        q.requeue_pod_group(("default", "g"))
        another = pod("another", **member)

        def come():
            q.set(another)
            q.requeue_pod_group(("default", "g"))

        return steps_of(come)

    assert steps(2000) < 1.2 * steps(200)


def test_pods_of_a_pod_group_that_find_no_node_one_by_one_wait_with_their_like():
    member = {"schedulingGroup": {"podGroupName": "g"}}
    q = queue(*(pod(name, nodeSelector={"of": name[0]}, **member) for name in ("a0", "a1", "b0")))
    q.mark_all([("uid-a0", Change.NODE, False)], NOW)
    assert heads(q) == ["a1", "b0"], "nobody has looked at them"
    q.mark_all([("uid-a1", Change.NODE, False)], NOW)
    q.mark_all([("uid-b0", Change.CAPACITY, False)], NOW)
    assert heads(q) == []
    q.requeue(Change.NODE)
    assert heads(q) == ["a0", "a1"]
    q.mark_pod_group(("default", "g"), Change.ENDED, NOW)
    assert heads(q) == []
    q.requeue(Change.ENDED)
    assert heads(q) == ["a0", "a1"]
    q.requeue_pod_group(("default", "g"))
    assert heads(q) == ["a0", "a1", "b0"]


def test_a_pod_group_whose_pods_were_all_looked_at_one_by_one_is_marked_and_requeued_in_parts():
    count, key, member = MAX_OF_POD_GROUP + 10, ("default", "g"), {"schedulingGroup": {"podGroupName": "g"}}
    q = queue(*(pod(f"p{i}", nodeSelector={"of": str(i)}, **member) for i in range(count)))
    for i in range(count):
        q.mark_all([(f"uid-p{i}", Change.NODE, False)], NOW)
    q.requeue_pod_group(key)
    assert len(heads(q)) == MAX_OF_POD_GROUP
    q.requeue_pod_group(key)
    assert len(heads(q)) == count
    for left in (10, 0):
        q.mark_pod_group(key, Change.NODE, NOW)
        assert len(heads(q)) == left


def test_groups_that_have_waited_for_long_enough_together_are_looked_at_again_in_parts():
    count = MAX_FLUSHED + 1
    q = queue(*(pod(f"p{i}", nodeSelector={"of": str(i)}) for i in range(count)))
    for i in range(count):
        q.mark_all([(f"uid-p{i}", Change.NODE, False)], NOW)
    assert len(heads(q, NOW + 30)) == MAX_FLUSHED
    assert q.next_ready() == NOW + 30
    assert len(heads(q, NOW + 30)) == count


def test_priority_then_age_then_arrival():
    q = queue(young("late", 9), young("b", 5), young("a", 5), young("early", 1), young("vip", 30, priority=10))
    assert heads(q) == ["vip", "early", "b", "a", "late"]


def test_templates_are_merged_into_one_order():
    q = queue(young("s1", 1), big("b2", created="2026-03-01T12:00:02Z"), young("s3", 3))
    assert heads(q) == ["s1", "b2", "s3"]


def test_of_each_template_no_more_than_a_cycle_can_place():
    q = queue(*(pod(f"p{i:03}") for i in range(300)), *(big(f"b{i}") for i in range(2)))
    assert len(heads(q)) == 252
    assert heads(q, limit=1) == ["p000", "b0"]
    assert len(q) == 302


def test_pods_beyond_those_that_cycles_look_at_have_their_turns():
    q = queue(*(pod(f"p{i:03}") for i in range(260)), pod("other", nodeSelector={"of": "its own"}))
    names = [[p.name for p in q.next_beyond("uid-p000", 4)] for _ in range(4)]
    rest = [f"p{i}" for i in range(250, 260)]
    assert names == [rest[:4], rest[4:8], rest[8:], rest[:4]]
    assert q.next_beyond("uid-p001", 4) == [], "the first of its like stands for them"
    assert q.next_beyond("uid-other", 4) == q.next_beyond("uid-other", 4) == []
    q.retry("uid-p000", NOW)
    assert q.next_beyond("uid-p000", 4) == [], "it backs off"


def test_heads_stay_until_something_is_said_of_them():
    q = queue(pod("a"), pod("b"))
    assert heads(q) == heads(q) == ["a", "b"]
    q.remove("uid-a")
    assert heads(q) == ["b"]
    q.remove("uid-a")
    q.remove("uid-b")
    assert heads(q) == []
    assert len(q) == 0


def test_who_does_not_wait_is_not_in_it():
    q = queue(pod("gated", schedulingGates=[{"name": "g"}]), pod("leaving", deleting=True), pod("bound", nodeName="n"))
    assert len(q) == 0
    q.set(pod("gated"))
    assert heads(q) == ["gated"]
    q.set(pod("gated", nodeName="n"))
    assert "uid-gated" not in q


def test_a_template_is_parked_and_woken_as_one():
    q = queue(pod("a"), pod("b"), big("c"))
    q.mark_all([("uid-a", Change.CAPACITY, False)], NOW)
    q.set(pod("d"))
    assert heads(q) == ["c"]
    q.requeue(Change.NODE)
    assert heads(q) == ["c"]
    q.requeue(Change.CAPACITY | Change.ENDED)
    assert heads(q) == ["a", "b", "c", "d"]


def test_numbered_siblings_wait_together():
    index = "batch.kubernetes.io/job-completion-index"
    signatures = PodSignatures()
    signatures.add_selector(LabelSelector.from_raw({"matchLabels": {"job": "k"}}))
    siblings = (pod(f"p{i}", labels={"job": "j", index: str(i)}) for i in range(3))
    q = queue(*siblings, pod("other", labels={"job": "k"}), signatures=signatures)
    q.mark_all([("uid-p1", Change.CAPACITY, False)], NOW)
    assert heads(q) == ["other"]


def test_a_parked_template_is_looked_at_again_after_a_while():
    q = queue(pod("a"))
    q.mark_all([("uid-a", Change.NODE, False)], NOW)
    assert q.next_ready() == NOW + 30
    assert heads(q, NOW + 29) == []
    assert heads(q, NOW + 30) == ["a"]
    assert q.next_ready() is None


def test_one_that_nodes_are_kept_for_is_a_head_of_every_cycle_that_there_is():
    q = queue(pod("a"))
    q.mark_all([("uid-a", Change.NODE, True)], NOW)
    assert heads(q) == [], "it alone is no reason for one"
    q.set(big("b"))
    assert heads(q) == ["a", "b"]
    q.mark_all([("uid-a", Change.NODE, False)], NOW + 1)
    assert q.next_ready() == NOW + 30, "since it was parked, and not since it was looked at last"
    q.requeue(Change.NODE)
    q.mark_all([("uid-a", Change.NODE, False)], NOW)
    assert heads(q) == ["b"]


def test_one_that_is_refused_for_another_reason_waits_for_what_may_help_with_that_too():
    q = queue(pod("a", **mounts("data")), big("b"))
    q.mark_all([("uid-a", Change.CAPACITY, True)], NOW)
    assert heads(q) == ["a", "b"]
    q.mark_all([("uid-a", Change.VOLUMES, False)], NOW)
    q.mark_all([("uid-b", Change.NODE, False)], NOW)
    assert heads(q) == []
    q.requeue_users(ClaimKey("default", "data"))
    assert heads(q) == ["a"]
    q.mark_all([("uid-a", Change.VOLUMES, False)], NOW)
    q.requeue(Change.CAPACITY)
    assert heads(q) == [], "what it was refused for before it was looked at again does not count"
    for uid in ("uid-a", "uid-b"):
        q.remove(uid)
    assert not q._index


def test_those_that_are_parked_for_a_change_are_known_beside_the_heads():
    q = queue(pod("a"), pod("a2"), big("b"), pod("c", requests={"cpu": "3"}), pod("d", requests={"cpu": "4"}))
    q.mark_all([("uid-a", Change.NODE | Change.CAPACITY, False)], NOW)
    q.mark_all([("uid-b", Change.NODE, False)], NOW)
    q.mark_all([("uid-c", Change.CAPACITY, True)], NOW)
    assert heads(q) == ["c", "d"]
    assert [each.name for each in q.parked(Change.CAPACITY)] == ["a", "a2"]


def test_everything_is_woken_when_a_profile_changes():
    q = queue(pod("a"), big("b"))
    q.mark_all([("uid-a", Change.NODE, False)], NOW)
    q.mark_all([("uid-b", Change.CAPACITY, False)], NOW)
    q.requeue_all()
    assert heads(q) == ["a", "b"]


def test_failed_bindings_back_off_one_pod_at_a_time():
    q = queue(pod("a"), pod("b"))
    waits = []
    now = NOW
    for _ in range(6):
        ready = q.retry("uid-a", now)
        waits.append(ready - now)
        assert heads(q, ready - 0.01) == ["b"]
        assert heads(q, ready) == ["a", "b"]
        now = ready
    assert waits == [1, 2, 4, 8, 10, 10]
    q.remove("uid-a")
    q.set(pod("a"))
    assert q.retry("uid-a", now) == now + 1


def test_a_pod_that_is_unknown_or_backs_off_is_not_ready():
    q = queue(pod("a"), pod("b"))
    q.retry("uid-a", NOW)
    assert [q.is_ready(f"uid-{name}") for name in "abc"] == [False, True, False]
    heads(q, NOW + 1)
    q.mark_all([("uid-a", Change.NODE, False)], NOW + 1)
    assert q.is_ready("uid-a")


def test_a_change_of_the_pod_does_not_end_its_backoff():
    q = queue(pod("a"))
    q.retry("uid-a", NOW)
    q.set(pod("a"))
    q.set(pod("a", labels={"new": "label"}))
    assert heads(q) == []
    assert q.next_ready() == NOW + 1
    assert heads(q, NOW + 1) == ["a"]


def test_a_changed_pod_is_no_longer_parked_with_its_old_kind():
    q = queue(pod("a"), pod("b"))
    q.mark_all([("uid-a", Change.NODE, False)], NOW)
    q.set(pod("a", tolerations=[{"operator": "Exists"}]))
    assert heads(q) == ["a"]


def test_failing_alone_in_its_template_it_comes_back_awake():
    q = queue(pod("a"))
    q.mark_all([("uid-a", Change.NODE, False)], NOW)
    q.retry("uid-a", NOW)
    q.requeue(Change.NODE)
    assert heads(q, NOW + 1) == ["a"]


def test_a_pod_that_went_while_it_backed_off_hides_nobody_behind_it():
    q = queue(pod("a"), pod("b"))
    q.retry("uid-a", NOW)
    q.remove("uid-a")
    at = q.retry("uid-b", NOW + 0.3)
    assert q.next_ready() == at
    assert heads(q, at) == ["b"]


def test_a_pod_of_a_gang_that_has_backed_off_has_its_gang_looked_at_again():
    member = {"schedulingGroup": {"podGroupName": "g"}}
    q = queue(pod("a", **member), pod("b", **member), pod("other"))
    at = q.retry("uid-a", NOW)
    q.mark_pod_group(("default", "g"), Change.ENDED, NOW)
    q.mark_all([("uid-other", Change.ENDED, False)], NOW)
    assert heads(q) == []
    assert heads(q, at) == ["a", "b"], "the others may have waited for it, and for what is kept for it"


def test_namespaces_of_one_priority_take_turns():
    crowd = [pod(f"c{i}", namespace="crowd") for i in range(4)]
    pods = [*crowd, young("late", 50, namespace="quiet"), young("vip", 55, namespace="quiet", priority=1)]
    assert heads(queue(*pods)) == ["vip", "c0", "late", "c1", "c2", "c3"]
    q = queue(*pods)
    taken = q.heads(NOW)
    assert [next(taken).name for _ in range(2)] == ["vip", "c0"]
    del taken
    q.note_turns({1: "quiet", 0: "crowd"})
    assert heads(q)[:3] == ["vip", "late", "c0"], "the turn goes on where the cycle before stopped"


def stuck(name, **over):
    return pod(name, namespace="stuck", **over)


def is_stuck(namespace):
    return namespace == "stuck"


def names(pods):
    return [each.name for each in pods]


def test_pods_of_a_namespace_that_is_held_back_are_passed_over_and_no_others():
    q = queue(*(stuck(f"s{i}", priority=i % 2) for i in range(4)), pod("a"), pod("b", priority=1))
    assert names(q.heads(NOW, held_back=is_stuck)) == ["b", "a"]
    assert len(heads(q)) == 6, "they have their turn once it is over"


def test_where_all_namespaces_with_active_pods_are_held_back_there_is_nothing_to_do():
    q = queue(stuck("s"), pod("parked"), pod("drains", requests={"cpu": "9"}))
    q.mark_all([("uid-parked", Change.NODE, False)], NOW)
    q.mark_all([("uid-drains", Change.NODE, True)], NOW)
    assert names(q.heads(NOW, held_back=is_stuck)) == [], "a pod that drains nodes alone is no reason for a cycle"
    assert q.next_ready() == NOW + 30, "time alone lets none of the others go on"
    assert names(q.heads(NOW + 30, held_back=is_stuck)) == ["parked", "drains"]
    assert names(q.heads(NOW + 30)) == ["parked", "s", "drains"]


def test_one_that_drains_nodes_waits_while_its_namespace_is_held_back():
    q = queue(stuck("s"), pod("a"))
    q.mark_all([("uid-s", Change.NODE, True)], NOW)
    assert names(q.heads(NOW, held_back=is_stuck)) == ["a"]
    assert heads(q) == ["a", "s"]


def test_what_waits_beside_the_heads_includes_what_is_held_back():
    q = queue(stuck("s0"), stuck("s1"), stuck("s2", requests={"cpu": "9"}), pod("a"), big("b"))
    q.mark_all([("uid-s2", Change.CAPACITY, False)], NOW)
    q.mark_all([("uid-b", Change.CAPACITY, False)], NOW)
    assert names(q.heads(NOW, held_back=is_stuck)) == ["a"]
    assert names(q.parked(Change.CAPACITY, held_back=is_stuck)) == ["s2", "b", "s0", "s1"]
    assert names(q.parked(Change.CAPACITY)) == ["s2", "b"]


def test_a_namespace_that_was_held_back_in_a_pass_comes_before_what_has_failed_in_it():
    q = queue(stuck("s"), pod("a"), big("b"))
    q.mark_all([(next(q.heads(NOW, held_back=is_stuck)).uid, Change.CAPACITY, False)], NOW)
    q.requeue(Change.CAPACITY)
    assert names(q.heads(NOW, resume=True)) == ["b", "s", "a"]


def test_when_a_cycle_runs_out_of_time_the_next_begins_with_what_it_did_not_look_at():
    q = queue(*(pod(f"p{i}", priority=1, requests={"cpu": str(i + 1)}) for i in range(4)), big("behind", priority=0))
    looked_at = q.heads(NOW)
    for _ in range(3):
        q.mark_all([(next(looked_at).uid, Change.CAPACITY, False)], NOW)
    q.requeue(Change.CAPACITY)
    assert [p.name for p in q.heads(NOW, resume=True)] == ["p3", "behind", "p0", "p1", "p2"]
    assert heads(q) == ["p0", "p1", "p2", "p3", "behind"], "a cycle that had time for all begins with the first"


def test_once_no_pod_is_left_that_no_cycle_has_looked_at_priority_counts_again():
    q = queue(pod("high", priority=1))
    assert heads(q) == ["high"]
    q.mark_all([("uid-high", Change.CAPACITY, False)], NOW)
    assert [p.name for p in q.heads(NOW, resume=True)] == []
    q.set(pod("low"))
    q.requeue(Change.CAPACITY)
    assert [p.name for p in q.heads(NOW, resume=True)] == ["high", "low"]


def test_where_events_requeue_more_groups_than_a_cycle_can_look_at_each_has_its_turn():
    q = queue(*(pod(f"p{i}", requests={"cpu": str(i + 1)}) for i in range(5)), big("behind", priority=-1))
    looked_at = []
    for cycle in range(6):
        heads_now = q.heads(NOW, resume=cycle > 0)
        for _ in range(2):
            looked_at.append(next(heads_now).name)
            q.mark_all([(f"uid-{looked_at[-1]}", Change.CAPACITY, False)], NOW)
        q.requeue(Change.CAPACITY)
    assert looked_at == 2 * ["p0", "p1", "p2", "p3", "p4", "behind"]


def test_pods_that_have_not_been_grouped_anew_are_work():
    signatures = PodSignatures()
    count = MAX_REGROUPED + 1
    q = queue(*(pod(f"p{i}", labels={"app": str(i)}) for i in range(count)), signatures=signatures)
    q.mark_all([("uid-p0", Change.CAPACITY, False)], NOW)
    signatures.add_selector(LabelSelector.from_raw({"matchLabels": {"app": f"{count - 1}"}}))
    assert f"p{count - 1}" not in heads(q)
    q.mark_all([("uid-p0", Change.CAPACITY, False)], NOW)
    assert q.next_ready() == -math.inf
    assert heads(q) == [f"p{count - 1}"]
    assert q.next_ready() == NOW + 30


def test_a_selector_that_distinguishes_pods_parts_them():
    signatures = PodSignatures()
    q = queue(pod("a", labels={"app": "a"}), pod("b", labels={"app": "b"}), signatures=signatures)
    q.mark_all([("uid-a", Change.CAPACITY, False)], NOW)
    assert heads(q) == []
    signatures.add_selector(LabelSelector.from_raw({"matchLabels": {"app": "a"}}))
    assert heads(q) == ["a", "b"]
    q.mark_all([("uid-a", Change.CAPACITY, False)], NOW)
    assert heads(q) == ["b"]


def test_pods_that_back_off_are_not_marked_with_their_like():
    pods = [pod("a"), pod("b"), pod("c")]
    q = queue(*pods)
    for each, at in zip(pods, (NOW, NOW + 0.005, NOW + 0.01)):
        q.retry(each.uid, at)
    assert heads(q, NOW + 1.001) == ["a"]
    for each in pods:
        q.mark_all([(each.uid, Change.ENDED, False)], NOW + 1.001)
    assert heads(q, NOW + 2.0) == [], "they have joined their like"
    q.requeue(Change.ENDED)
    assert heads(q, NOW + 3.0) == ["a", "b", "c"]
    for each in pods:
        q.remove(each.uid)
    assert len(q) == 0


def test_a_claim_that_changes_requeues_the_pods_that_use_it_and_no_others():
    names = {
        "mine": mounts("data"),
        "alike": mounts("data"),
        "other": mounts("logs"),
        "own": mounts(ephemeral=["data"]),
    }
    pods = [pod(name, **spec) for name, spec in names.items()]
    pods.append(pod("elsewhere", namespace="team-b", **mounts("data")))
    q = queue(*pods)
    assert len(heads(q)) == 5

    def park():
        for each in pods:
            q.mark_all([(each.uid, Change.NODE | Change.VOLUMES, False)], NOW)
        assert heads(q) == []

    park()
    q.requeue_users(ClaimKey("default", "data"))
    assert heads(q) == ["mine", "alike"]
    park()
    q.requeue_users(ClaimKey("default", "own-data"))
    assert heads(q) == ["own"]
    q.requeue(Change.VOLUMES)
    assert len(heads(q)) == 5
    for each in pods:
        q.mark_all([(each.uid, Change.NODE, False)], NOW)
    q.requeue_users(ClaimKey("default", "data"))
    assert heads(q) == [], "no volume is what they wait for"
    q.requeue(Change.NODE)
    for each in pods:
        q.mark_all([(each.uid, Change.VOLUMES, False)], NOW)
        q.remove(each.uid)
    assert not q._index, "nothing is kept of pods that are gone"
