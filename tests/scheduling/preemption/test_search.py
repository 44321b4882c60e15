from concerto.scheduling.preemption.candidates import Candidate
from concerto.scheduling.preemption.search import CandidateSearch
from concerto.scheduling.preemption.victims import Victims
from support.scheduling_builders import pod


class Nodes:
    """Nodes with pods of these priorities, of which each pod that is given a place evicts the lowest one left."""

    def __init__(self, violations=(), **priorities):
        self.left = {node: sorted(each) for node, each in priorities.items()}
        self.violations = violations
        self.looked_at = []

    def look(self, pod_, node):
        self.looked_at.append(node)
        if not self.left[node]:
            return ("Insufficient cpu",)
        victim = pod(f"{node}-{len(self.left[node])}", priority=self.left[node][0])
        return Candidate(node, Victims((victim,), int(node in self.violations)))

    def search(self):
        return CandidateSearch(self.left, self.look)

    def nominate(self, candidate):
        self.left[candidate.node].pop(0)


ASKS = pod("asks", priority=100)


def finish(search):
    while not search.finished:
        search.look_at_next(ASKS)


def test_alike_pods_are_given_the_best_candidates_one_after_another():
    nodes = Nodes(a=[3, 4], b=[1, 5], c=[2])
    search = nodes.search()
    finish(search)
    assert nodes.looked_at == ["a", "b", "c"]
    given = []
    while (candidate := search.take(ASKS)) is not None:
        given.append((candidate.node, candidate.victims.pods[0].priority))
        nodes.nominate(candidate)
        finish(search)
    assert given == [("b", 1), ("c", 2), ("a", 3), ("a", 4), ("b", 5)]
    assert search.refusals() == {"Insufficient cpu": 3}


def test_a_node_that_was_filled_meanwhile_is_given_to_nobody():
    nodes = Nodes(a=[1], b=[2])
    search = nodes.search()
    finish(search)
    nodes.left["a"] = []
    assert search.take(ASKS).node == "b"


def test_nodes_that_are_no_candidates_are_looked_at_for_their_reasons_if_there_is_none():
    nodes = Nodes(a=[1], b=[], c=[])
    finish(CandidateSearch(["a"], nodes.look, ["b", "c"]))
    assert nodes.looked_at == ["a"]
    nodes = Nodes(a=[], b=[], c=[])
    search = CandidateSearch(["a"], nodes.look, ["b", "c"])
    finish(search)
    assert sorted(nodes.looked_at) == ["a", "b", "c"]
    assert search.refusals() == {"Insufficient cpu": 3}


def test_a_hundred_candidates_are_enough():
    nodes = Nodes(**{f"n{i}": [1] for i in range(500)})
    finish(nodes.search())
    assert len(nodes.looked_at) == 100


def test_with_enough_candidates_it_goes_on_for_one_that_violates_no_budget():
    names = [f"n{i}" for i in range(500)]
    nodes = Nodes(violations=names[:200], **{name: [1] for name in names})
    search = nodes.search()
    finish(search)
    assert len(nodes.looked_at) == 201
    assert search.take(ASKS).node == "n200"


def test_each_further_pod_has_two_nodes_looked_at():
    nodes = Nodes(**{f"n{i}": [1] for i in range(500)})
    search = nodes.search()
    for taken in range(300):
        finish(search)
        assert len(nodes.looked_at) == 100 + 2 * taken
        nodes.nominate(search.take(ASKS))


def test_candidates_that_another_search_has_left_are_looked_at_only_when_they_are_taken():
    nodes = Nodes(**{f"n{i}": [1] for i in range(500)})
    earlier = nodes.search()
    finish(earlier)
    nodes.looked_at.clear()
    nodes.left["n0"] = []
    del nodes.left["n1"]
    search = CandidateSearch(list(nodes.left), nodes.look, known=earlier.remainder.candidates)
    finish(search)
    assert nodes.looked_at == ["n100"]
    assert search.take(ASKS).node == "n2"
    assert nodes.looked_at == ["n100", "n0", "n2"]


def test_the_search_goes_on_if_nothing_is_left_of_what_another_search_has_found():
    nodes = Nodes(**{f"n{i}": [1] for i in range(500)})
    earlier = nodes.search()
    finish(earlier)
    nodes.left |= {f"n{i}": [] for i in range(100)}
    search = CandidateSearch(list(nodes.left), nodes.look, known=earlier.remainder.candidates)
    finish(search)
    assert search.take(ASKS, at_once=False) is None
    assert not search.finished
    while (found := search.take(ASKS, at_once=False)) is None:
        finish(search)
    assert found.node == "n100"


def test_the_search_goes_on_if_all_that_is_left_violates_a_budget():
    nodes = Nodes(violations={"n1"}, **{f"n{i}": [1] for i in range(3)})
    known = [nodes.look(ASKS, "n0"), nodes.look(ASKS, "n1")]
    search = CandidateSearch(list(nodes.left), nodes.look, known=known)
    search._enough = 2
    nodes.left["n0"] = []
    assert search.finished
    assert search.take(ASKS, at_once=False) is None
    finish(search)
    assert search.take(ASKS, at_once=False).node == "n2"


def test_the_node_of_an_earlier_nomination_is_looked_at_first_and_goes_before_better_ones():
    nodes = Nodes(a=[1], b=[5], c=[2])
    search = nodes.search()
    search.look_first_at(ASKS, "b")
    search.look_first_at(ASKS, "gone")
    finish(search)
    assert nodes.looked_at == ["b", "a", "c"]
    assert search.take(ASKS, "b").node == "b"


def test_without_nodes_it_is_over_at_once():
    search = Nodes().search()
    assert search.finished
    assert search.take(ASKS) is None
