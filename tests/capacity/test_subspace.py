"""Models and their merging: the lemmas of Carico, appendix A, and exactness of the cluster model."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from concerto.capacity.subspace import (
    ClusterModel,
    StreamingClusterModel,
    Subspace,
    batch_moment,
    cluster_model,
    decompose,
    has_moved,
    merge,
    second_moment,
)

unit = st.floats(0, 1, width=32).map(float)
resources = st.integers(1, 6)
one, two, several = st.just(1), st.just(2), st.integers(1, 6)


@st.composite
def batches(draw, count):
    """Some batches of samples (b, m) of one number of resources."""
    m = draw(resources)
    return [draw(arrays(float, (draw(st.integers(1, 12)), m), elements=unit)) for _ in range(draw(count))]


def by_svd(matrix):
    """(directions, σ) of a wide matrix, straight from LAPACK."""
    m = len(matrix)
    u, s, _ = np.linalg.svd(matrix, full_matrices=True)
    return u, np.concatenate([s, np.zeros(m - len(s))])


def scaled(batch):
    return batch.T / np.sqrt(len(batch))


def same_model(model, other):
    assert model[1] == pytest.approx(other[1], abs=1e-7)
    assert second_moment(*model) == pytest.approx(second_moment(*other), abs=1e-9)


@given(batches(one))
def test_a_batch_gives_the_singular_vectors_of_its_matrix(drawn):
    (batch,) = drawn
    same_model(decompose(batch_moment(batch)), by_svd(scaled(batch)))


@given(batches(one))
def test_directions_are_orthonormal_sorted_and_the_first_is_non_negative(drawn):
    (batch,) = drawn
    directions, sigma = decompose(batch_moment(batch))
    assert directions.T @ directions == pytest.approx(np.eye(len(sigma)), abs=1e-9)
    assert (np.diff(sigma) <= 1e-12).all()
    assert (directions[:, 0] >= 0).all()
    assert (directions.sum(axis=0) >= -1e-9).all()


@given(batches(one), st.integers(2, 5))
def test_sigma_does_not_depend_on_how_long_a_batch_is(drawn, times):
    (batch,) = drawn
    assert decompose(batch_moment(np.tile(batch, (times, 1))))[1] == pytest.approx(
        decompose(batch_moment(batch))[1], abs=1e-7
    )


def test_a_uniform_load_has_its_length_as_sigma_and_points_along_it():
    directions, sigma = decompose(batch_moment(np.full((10, 4), 0.3)))
    assert sigma == pytest.approx([0.6, 0, 0, 0], abs=1e-7)
    assert directions[:, 0] == pytest.approx([0.5] * 4)


@pytest.mark.parametrize("m", [1, 2, 5])
def test_nothing_used_points_everywhere_alike(m):
    directions, sigma = decompose(np.zeros((3, m, m)))
    assert (sigma == 0).all()
    for model in directions:
        assert model[:, 0] == pytest.approx(np.full(m, 1 / np.sqrt(m)))
        assert model.T @ model == pytest.approx(np.eye(m), abs=1e-12)


@given(st.data())
def test_more_usage_never_lowers_sigma(data):
    """Carico, appendix A.2: 0 ≤ a ≤ b ≤ 1 everywhere gives σ₁(A) ≤ σ₁(B)."""
    m, b = data.draw(resources), data.draw(st.integers(1, 12))
    small = data.draw(arrays(float, (b, m), elements=unit))
    share = data.draw(arrays(float, (b, m), elements=unit))
    large = small + (1 - small) * share
    assert decompose(batch_moment(small))[1][0] <= decompose(batch_moment(large))[1][0] + 1e-12


@given(batches(two), unit)
def test_merged_sigma_lies_between_the_two_projected_energies(drawn, weight):
    """Carico, appendix A.4, along the merged u₁, for scaled batches; in consequence it cannot explode."""
    first, second = (batch_moment(batch) for batch in drawn)
    directions, sigma = merge(decompose(first), decompose(second), weight)
    u = directions[:, 0]
    energies = sorted([u @ first @ u, u @ second @ u])
    assert energies[0] - 1e-9 <= sigma[0] ** 2 <= energies[1] + 1e-9


@given(batches(two), unit)
def test_merging_is_the_svd_of_the_weighted_concatenation(drawn, weight):
    """Carico, section 3.3, literally: SVD of [√w₁ U₁Σ₁, √w₂ U₂Σ₂]."""
    models = [decompose(batch_moment(batch)) for batch in drawn]
    concatenated = np.hstack([np.sqrt(w) * (u * s) for w, (u, s) in zip((1 - weight, weight), models)])
    same_model(merge(*models, weight), by_svd(concatenated))


def test_merging_a_model_with_itself_changes_nothing_however_often():
    model = decompose(batch_moment(np.random.default_rng(1).random((10, 3))))
    merged = model
    for _ in range(200):
        merged = merge(merged, model, 0.2)
    same_model(merged, model)


# The cluster's model


def dense(batches_by_node):
    """SVD of all nodes' scaled batches side by side, each with weight 1/N."""
    weight = 1 / np.sqrt(len(batches_by_node))
    return by_svd(np.hstack([weight * scaled(batch) for batch in batches_by_node]))


def reported(model):
    subspace = model.subspace()
    return subspace.directions, subspace.sigma


@given(batches(several))
def test_the_cluster_model_is_the_dense_svd_and_the_sequential_merge(drawn):
    exact, streaming = ClusterModel(drawn[0].shape[1]), StreamingClusterModel(drawn[0].shape[1])
    models = [decompose(batch_moment(batch)) for batch in drawn]
    for k, model in enumerate(models):
        exact.update(f"node-{k}", *model)
        streaming.update(f"node-{k}", *model)
    same_model(reported(exact), dense(drawn))
    # Carico's rule with γ = √((N-1)/N), √(1/N) is exact as long as each node is merged once
    sequential = models[0]
    for k, model in enumerate(models[1:], start=2):
        sequential = merge(sequential, model, 1 / k)
    same_model(reported(exact), sequential)
    same_model(reported(streaming), sequential)


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=60))
def test_adding_and_removing_leaves_just_what_the_live_nodes_say_last(seed, steps):
    rng = np.random.default_rng(seed)
    model, last = ClusterModel(3), {}
    for node, keep in steps:
        if keep:
            last[node] = rng.random((10, 3))
            model.update(str(node), *decompose(batch_moment(last[node])))
        else:
            last.pop(node, None)
            model.remove(str(node))
        assert len(model) == len(last)
        assert (str(node) in model) == (node in last)
    if not last:
        assert model.subspace() is None
        return
    same_model(reported(model), dense(list(last.values())))
    before = reported(model)
    model.rebuild()
    same_model(reported(model), before)


@given(st.permutations(range(6)))
def test_order_does_not_matter_to_the_exact_model(order):
    rng = np.random.default_rng(3)
    drawn = rng.random((6, 10, 2))
    sorted_model, other = ClusterModel(2), ClusterModel(2)
    for k in range(6):
        sorted_model.update(str(k), *decompose(batch_moment(drawn[k])))
    for k in order:
        other.update(str(k), *decompose(batch_moment(drawn[k])))
    same_model(reported(other), reported(sorted_model))


def test_rounding_does_not_drift_over_many_updates():
    rng = np.random.default_rng(7)
    model = ClusterModel(2)
    names = [f"node-{k}" for k in range(50)]
    for _ in range(500):
        last = batch_moment(rng.random((50, 10, 2)))
        model.update_moments(names, last)
    assert second_moment(*reported(model)) == pytest.approx(last.mean(axis=0), abs=1e-12)


@pytest.mark.parametrize("kind", ["Exact", "Streaming"])
@pytest.mark.parametrize(
    ("case", "directions", "sigma"),
    [
        ("not a number", [[np.nan, 0], [0, 1]], [1, 0]),
        ("infinite", [[1, 0], [0, 1]], [np.inf, 0]),
        ("of other resources", np.eye(3), [1, 0, 0]),
        ("columns without σ", np.eye(2), [1]),
        ("flat", [1, 0], [1, 0]),
    ],
)
def test_a_bad_model_is_refused_and_leaves_no_trace(kind, case, directions, sigma):
    model = cluster_model(kind, 2)
    model.update("good", np.eye(2), np.array([0.5, 0.1]))
    before = reported(model)
    with pytest.raises(ValueError, match=r"model"):
        model.update("bad", np.array(directions, dtype=float), np.array(sigma, dtype=float))
    assert len(model) == 1, case
    same_model(reported(model), before)


def test_the_streaming_model_forgets_a_lost_node_only_slowly():
    model = StreamingClusterModel(2)
    model.update("a", np.eye(2), np.array([1.0, 0.0]))
    model.update("b", np.eye(2), np.array([0.0, 0.0]))
    model.remove("a")
    assert model.subspace().nodes == 1
    assert model.subspace().sigma[0] == pytest.approx(np.sqrt(0.5))


def turned(degrees, sigma=0.5):
    angle = np.radians(degrees)
    return Subspace(np.array([[np.cos(angle), np.sin(angle)], [np.sin(angle), -np.cos(angle)]]),
                    np.array([sigma, 0.1]), 3)  # fmt: skip


@pytest.mark.parametrize(
    ("case", "current", "moved"),
    [
        ("nothing changed", turned(30), False),
        ("σ₁ by 1.9 %", turned(30, 0.5 * 1.019), False),
        ("σ₁ by 2.1 %", turned(30, 0.5 * 1.021), True),
        ("σ₁ down by 2.1 %", turned(30, 0.5 * 0.979), True),
        ("u₁ by 0.9°", turned(30.9), False),
        ("u₁ by 1.1°", turned(31.1), True),
    ],
)
def test_what_is_worth_a_write(case, current, moved):
    assert has_moved(turned(30), current, sigma_share=0.02, angle_degrees=1.0) is moved, case


@pytest.mark.parametrize("merge", ["Exact", "Streaming"])
@pytest.mark.parametrize("strength", [1e200, 1e17, float("inf"), float("nan")])
def test_one_nodes_immense_model_is_refused_and_leaves_no_trace(merge, strength):
    model = cluster_model(merge, 2)
    model.update("honest", np.eye(2), np.array([0.5, 0.1]))
    before = model.subspace().sigma.copy()
    with pytest.raises(ValueError, match=r"finite|no node uses more"):
        model.update("liar", np.eye(2), np.array([strength, 0.1]))
    model.remove("liar")
    assert model.subspace().sigma == pytest.approx(before)
