import pytest

from concerto.api.node import NodeView, trim_node
from concerto.scheduling.plugins.image_locality.score import ImageLocality
from support.scheduling_builders import cluster_state, node, pod, query, scores

MIB = 2**20


def with_images(name, **images):
    return node(name, images={f"r/{image}:1": mib * MIB for image, mib in images.items()})


def asks(*images, volume=""):
    more = {"volumes": [{"name": "files", "image": {"reference": volume}}]} if volume else {}
    return pod("p", containers=[{"name": f"c{i}", "image": image} for i, image in enumerate(images)], **more)


CASES = {
    "no node has it": ([with_images("a", x=500), with_images("b")], asks("r/y:1"), {}),
    "all of 1000 MiB on every node": ([with_images("a", x=1000)], asks("r/x:1"), {"a": 100}),
    "half of the nodes have it: half of its size counts": (
        [with_images("a", x=1000), with_images("b")], asks("r/x:1"), {"a": 48, "b": 0},
    ),
    "a small one does not matter": ([with_images("a", x=20), with_images("b", x=20)], asks("r/x:1"), {}),
    "one of two images": ([with_images("a", x=1000)], asks("r/x:1", "r/y:1"), {"a": 49}),
    "another tag is another image": ([with_images("a", x=1000)], asks("r/x:2"), {}),
    "without a tag, latest is meant": ([node("a", images={"r/x:latest": 1000 * MIB})], asks("r/x"), {"a": 100}),
    "an image that is a volume": ([with_images("a", x=1000)], asks("r/y:1", volume="r/x:1"), {"a": 49}),
    "a port is no tag": ([node("a", images={"r:5000/x:latest": 1000 * MIB})], asks("r:5000/x"), {"a": 100}),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "asked", "expected"), CASES.values(), ids=CASES)
def test_images(nodes, asked, expected):
    assert scores(ImageLocality(), query(cluster_state(nodes), asked)) == expected


def test_images_come_and_go_with_their_node():
    cluster = cluster_state([with_images("a", x=1000)])
    cluster.set_node(with_images("b", x=1000))
    assert scores(ImageLocality(), query(cluster, asks("r/x:1"))) == {"a": 100, "b": 100}
    cluster.set_node(with_images("b", y=1000))
    assert scores(ImageLocality(), query(cluster, asks("r/x:1"))) == {"a": 48, "b": 0}
    cluster.remove_node("a")
    assert scores(ImageLocality(), query(cluster, asks("r/x:1"))) == {}


def test_a_trimmed_node_has_its_images():
    raw = {"metadata": {"name": "a"}, "status": {"images": [{"names": ["r/x@sha256:1", "r/x:1"], "sizeBytes": 7}]}}
    assert NodeView.from_raw(trim_node(raw)).images == {"r/x@sha256:1": 7, "r/x:1": 7}
