from concerto.api.node import NodeView, Taint, trim_node

RAW = {
    "metadata": {
        "name": "n1",
        "uid": "u1",
        "resourceVersion": "7",
        "labels": {"zone": "a"},
        "annotations": {"note": "x"},
        "managedFields": [{}],
    },
    "spec": {"unschedulable": True, "taints": [{"key": "gpu", "effect": "NoSchedule"}], "podCIDR": "10.0.0.0/24"},
    "status": {
        "allocatable": {"cpu": "3800m", "memory": "1Gi", "pods": "110", "example.com/gpu": "2"},
        "conditions": [{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": "True"}],
        "images": [{"names": ["x"], "sizeBytes": 5}, {}],
    },
}


def test_a_node_is_read_in_the_units_of_scheduling():
    assert NodeView.from_raw(RAW) == NodeView(
        "n1",
        "u1",
        {"zone": "a"},
        {"cpu": 3800, "memory": 2**30, "pods": 110, "example.com/gpu": 2},
        (Taint("gpu", "", "NoSchedule"),),
        unschedulable=True,
        ready=True,
        images={"x": 5},
    )


def test_a_node_that_never_said_ready_is_not():
    bare = NodeView.from_raw({"metadata": {"name": "n1"}})
    assert not bare.ready
    assert not bare.unschedulable
    unknown = {**RAW, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    assert not NodeView.from_raw(unknown).ready


def test_trimming_keeps_what_is_read():
    trimmed = trim_node(RAW)
    assert NodeView.from_raw(trimmed) == NodeView.from_raw(RAW)
    assert "annotations" not in trimmed["metadata"]
    assert trimmed["metadata"]["resourceVersion"] == "7"
    assert NodeView.from_raw(trim_node({"metadata": {"name": "n1"}})) == NodeView.from_raw({"metadata": {"name": "n1"}})
