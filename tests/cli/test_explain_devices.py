from concerto.cli.explain_devices import read_devices
from support.faulty_server import faulty, refuses, says
from support.scheduling_builders import cluster_state, pod

GPU = "example.com/gpu"
GOOD = {"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": GPU}}
BAD = {"metadata": {"name": "odd"}, "spec": {"extendedResourceName": 1}}


async def test_device_classes_are_read_for_a_pod_that_requests_an_extended_resource():
    cluster = cluster_state([])
    async with faulty([says(200, {"items": [GOOD, BAD]})]) as server:
        assert await read_devices(server.session, cluster, pod("p", requests={"cpu": "1"})) == []
        assert not cluster.resources.device_classes.offering(GPU), "nothing was asked for"
        (problem,) = await read_devices(server.session, cluster, pod("p", requests={GPU: "1"}))
    assert problem.startswith("DeviceClass odd is left out")
    assert cluster.resources.device_classes.offering(GPU) == "gpu"


async def test_a_missing_right_is_told():
    async with faulty([refuses(403, "Forbidden")]) as server:
        (problem,) = await read_devices(server.session, cluster_state([]), pod("p", requests={GPU: "1"}))
    assert problem.startswith("DeviceClasses are left out, as they cannot be read")
