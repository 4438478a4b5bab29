import pickle

import jax
import numpy as np
import pytest
from scipy import special

from vhat.errors import InputError
from vhat.models.networks import ACTIVATIONS, Network, VarianceScaling, glorot, normal

BY_HAND = {
    "relu": lambda x: np.maximum(x, 0.0),
    "tanh": np.tanh,
    "softplus": lambda x: np.logaddexp(0.0, x),
    "gelu": lambda x: x * special.ndtr(x),
    "silu": lambda x: x * special.expit(x),
}


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("outputs", [1, 3])
def test_network_equals_the_same_layers_in_numpy(activation, outputs):
    network = Network((4, 7, 5, outputs), activation, initial=VarianceScaling(2.0))
    params = network.init(seed=3)
    X = np.random.default_rng(0).standard_normal((6, 4))
    hidden = X
    for layer in params[:-1]:
        hidden = BY_HAND[activation](hidden @ layer["w"] + layer["b"])
    expected = hidden @ params[-1]["w"] + params[-1]["b"]
    with jax.enable_x64(True):
        found = np.asarray(network(params, X))
    np.testing.assert_allclose(found, expected[:, 0] if outputs == 1 else expected, rtol=1e-12, atol=1e-13)


def test_equal_networks_share_compiled_functions():
    traces = []

    @jax.jit
    def count(x):
        traces.append(1)
        return x

    predict = jax.jit(lambda network, params, X: count(network(params, X)), static_argnums=0)
    first, second = Network([2, 3, 1], "silu"), Network((2, np.int64(3), 1), "silu")
    assert first == second
    assert hash(first) == hash(second)
    predict(first, first.init(0), np.zeros((2, 2), np.float32))
    predict(second, second.init(1), np.ones((2, 2), np.float32))
    assert len(traces) == 1
    assert predict._cache_size() == 1


def test_init_is_fixed_by_its_seed_and_counts_its_parameters():
    network = Network((3, 8, 2), initial=VarianceScaling())
    first, again, other = network.init(5), network.init(5), network.init(6)
    leaves = [jax.tree.leaves(params) for params in (first, again, other)]
    assert all(np.array_equal(a, b) for a, b in zip(leaves[0], leaves[1], strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(leaves[0], leaves[2], strict=True))
    assert sum(leaf.size for leaf in leaves[0]) == network.parameters == 3 * 8 + 8 + 8 * 2 + 2


@pytest.mark.parametrize(
    ("initial", "weight", "bias"),
    [
        (glorot(), np.sqrt(2 / (200 + 300)), 0.0),
        (glorot(bias=0.3), np.sqrt(2 / (200 + 300)), 0.3),
        (normal(3.0), 3.0, 3.0),
        (normal(3.0, bias=0.5), 3.0, 0.5),
        (VarianceScaling(100.0**2), 100 / np.sqrt(200), 100 / np.sqrt(200)),
        (VarianceScaling(2.0, "fan_out", "uniform", bias=0.0), np.sqrt(2 / 300), 0.0),
    ],
)
def test_layers_are_drawn_with_the_stated_spread(initial, weight, bias):
    layers = [initial.draw(np.random.default_rng(seed), 200, 300) for seed in range(20)]
    weights, biases = (np.concatenate([layer[name].ravel() for layer in layers]) for name in ("w", "b"))
    # Relative error of a standard deviation from N draws is about sqrt(1/(2N)) (normal); five of those.
    assert weights.std() == pytest.approx(weight, rel=5 / np.sqrt(2 * weights.size))
    assert biases.std() == pytest.approx(bias, rel=5 / np.sqrt(2 * biases.size), abs=0)
    assert abs(weights.mean()) < 5 * weight / np.sqrt(weights.size)


def test_uniform_weights_stay_within_glorot_limits():
    layer = glorot().draw(np.random.default_rng(0), 30, 50)
    assert np.abs(layer["w"]).max() <= np.sqrt(6 / 80)
    assert not layer["b"].any()


def test_random_first_layer_biases_spread_the_kinks():
    w, b = (Network((1, 64, 1), initial=(normal(3.0), glorot())).init(0)[0][name].ravel() for name in ("w", "b"))
    assert len(np.unique(np.round(-b / w, 6))) == 64


def test_network_survives_pickling():
    network = Network((2, 4, 1), "gelu", initial=(normal(1.0), glorot()))
    assert pickle.loads(pickle.dumps(network)) == network


def test_network_leaves_the_x64_flag_alone():
    network = Network((2, 4, 1))
    network(network.init(0), np.zeros((3, 2)))
    assert not jax.config.jax_enable_x64


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Network((3,)), "at least inputs and outputs"),
        (lambda: Network("12"), "at least inputs and outputs"),
        (lambda: Network((3, 0, 1)), "positive whole numbers"),
        (lambda: Network((3, 2.5, 1)), "positive whole numbers"),
        (lambda: Network((3, 4, 1), "sine"), "activation='sine' is not known"),
        (lambda: Network((3, 4, 1), initial=(glorot(),)), "1 entries.*2 layers"),
        (lambda: Network((3, 4, 1), initial="glorot"), "initial='glorot' is not known"),
        (lambda: VarianceScaling(-1.0), "scale=-1.0"),
        (lambda: VarianceScaling(bias=float("nan")), "bias=nan"),
        (lambda: VarianceScaling(mode="fan"), "mode='fan'"),
        (lambda: VarianceScaling(distribution="cauchy"), "distribution='cauchy'"),
        (lambda: normal(float("inf")), "standard_deviation=inf"),
    ],
)
def test_impossible_options_are_refused_in_a_sentence(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()


def test_inputs_of_another_width_are_refused_with_a_remedy():
    network = Network((1, 4, 1))
    with pytest.raises(InputError, match=r"Give X\[:, None\]"):
        network(network.init(0), np.zeros(5))
    with pytest.raises(InputError, match=r"takes \(rows, 1\)"):
        network(network.init(0), np.zeros((5, 2)))
