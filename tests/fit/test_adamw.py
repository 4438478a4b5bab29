from functools import partial

import jax
import numpy as np
import pytest

from vhat.errors import InputError, ModelError
from vhat.fit import AdamW, Network, VarianceScaling, objective, training
from vhat.fit.adam_steps import cosine

NETWORK = Network((2, 6, 1), "tanh", initial=VarianceScaling())


def problem(n=20, outputs=1, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2))
    y = np.sin(X @ rng.standard_normal((2, outputs))) + 0.1 * rng.standard_normal((n, outputs))
    return X, y[:, 0] if outputs == 1 else y


def train(recipe, X, y, *, seed=0, sample_weight=None):
    weights = None if sample_weight is None else [sample_weight]
    return recipe.train(X, y, seeds=[seed], sample_weights=weights)[0].params


def gradient(params, X, y, weights):
    """The gradient of 1/(2n) sum w (f - y)^2 for one tanh layer, by hand."""
    (w1, b1), (w2, b2) = ((layer["w"], layer["b"]) for layer in params)
    hidden = np.tanh(X @ w1 + b1)
    error = weights[:, None] * (hidden @ w2 + b2 - y.reshape(len(X), -1)) / len(X)
    back = (error @ w2.T) * (1 - hidden**2)
    return ({"w": X.T @ back, "b": back.sum(0)}, {"w": hidden.T @ error, "b": error.sum(0)})


def adamw_by_hand(params, X, y, weights, *, decay, rate, steps):
    """Loshchilov and Hutter's algorithm 2 with half a cosine, written for this test."""
    first = [{k: np.zeros_like(v) for k, v in layer.items()} for layer in params]
    second = [{k: np.zeros_like(v) for k, v in layer.items()} for layer in params]
    for t in range(steps):
        slope = gradient(params, X, y, weights)
        now = rate * (1 + np.cos(np.pi * t / steps)) / 2
        params = [dict(layer) for layer in params]
        for layer, g, m, v in zip(params, slope, first, second, strict=True):
            for k in layer:
                m[k] = 0.9 * m[k] + 0.1 * g[k]
                v[k] = 0.999 * v[k] + 0.001 * g[k] ** 2
                unbiased, scale = m[k] / (1 - 0.9 ** (t + 1)), np.sqrt(v[k] / (1 - 0.999 ** (t + 1)))
                layer[k] = layer[k] - now * (unbiased / (scale + 1e-8) + decay * layer[k])
    return params


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_trajectory_equals_adamw_written_by_hand(outputs, weighted):
    network = Network((2, 6, outputs), "tanh", initial=VarianceScaling())
    X, y = problem(outputs=outputs)
    weights = np.linspace(0.0, 2.0, len(X)) if weighted else np.ones(len(X))
    start = network.init(1)
    options = AdamW(network, weight_decay=0.3, steps=12, learning_rate=0.05, dtype="float64")
    found = train(options, X, y, seed=1, sample_weight=weights if weighted else None)
    expected = adamw_by_hand(start, X, y, weights, decay=0.3, rate=0.05, steps=12)
    for layer, other in zip(found, expected, strict=True):
        for k in ("w", "b"):
            assert layer[k].dtype == np.float64
            np.testing.assert_allclose(layer[k], other[k], rtol=1e-10, atol=1e-12)


def test_chunks_do_not_change_the_trajectory(monkeypatch):
    X, y = problem()
    options = AdamW(NETWORK, weight_decay=1e-3, steps=23, learning_rate=0.02, dtype="float64")
    whole = train(options, X, y)
    monkeypatch.setattr(training, "CHUNK", 7)
    parts = train(options, X, y)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_training_lowers_the_loss_in_single_precision():
    X, y = problem()
    options = AdamW(NETWORK, weight_decay=1e-4, steps=1000, learning_rate=1e-2)
    start = NETWORK.init(0)
    end = train(options, X, y)
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(end))
    before, after = (np.mean((np.asarray(NETWORK(params, X)) - y) ** 2) for params in (start, end))
    assert after < 0.05 * before


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_global_x64_flag_neither_changes_the_fit_nor_is_changed(dtype):
    X, y = problem()
    options = AdamW(NETWORK, weight_decay=1e-3, steps=30, dtype=dtype)
    narrow = train(options, X, y)
    assert not jax.config.jax_enable_x64
    with jax.enable_x64(True):
        wide = train(options, X, y)
        assert jax.config.jax_enable_x64
    for a, b in zip(jax.tree.leaves(narrow), jax.tree.leaves(wide), strict=True):
        assert a.dtype == b.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(a, b)


def test_other_decay_and_rate_reuse_the_compiled_steps():
    X, y = problem(n=17)
    train(AdamW(NETWORK, weight_decay=1e-3, steps=9), X, y)
    compiled = training._advance._cache_size()
    train(AdamW(NETWORK, weight_decay=1e-5, steps=9, learning_rate=0.1), X, y, seed=4)
    assert training._advance._cache_size() == compiled


def test_schedule_is_optax_cosine():
    import optax

    schedule = optax.cosine_decay_schedule(0.3, 11)
    np.testing.assert_allclose(cosine(0.3, 11), [float(schedule(t)) for t in range(11)], rtol=1e-6, atol=1e-7)


def test_training_writes_nothing_to_standard_output(capsys):
    X, y = problem()
    train(AdamW(NETWORK, weight_decay=1e-3, steps=10), X, y)
    assert capsys.readouterr().out == ""


def test_diverged_training_is_an_error_not_a_model():
    X, y = problem()
    with pytest.raises(ModelError, match="Lower learning_rate"):
        train(AdamW(NETWORK, weight_decay=1e6, steps=200, learning_rate=1e3), X, y)
    assert not jax.config.jax_enable_x64


@pytest.mark.parametrize(
    ("X", "y", "sentence"),
    [
        (np.zeros(5), np.zeros(5), "takes \\(rows, 2\\)"),
        (np.zeros((0, 2)), np.zeros(0), "no rows"),
        (np.array([[0.0, 1.0], [np.nan, 1.0]]), np.zeros(2), "X has NaN or infinite values in row 1"),
        (np.zeros((2, 2)), np.array([np.inf, 0.0]), "y has NaN or infinite values in row 0"),
        (np.zeros((2, 2)), np.zeros((2, 1)), r"Give y\[:, 0\]"),
        (np.zeros((2, 2)), np.zeros(3), "X has 2 rows and y has 3"),
    ],
)
def test_nothing_trains_on_bad_data(X, y, sentence):
    with pytest.raises(InputError, match=sentence):
        train(AdamW(NETWORK, weight_decay=1e-3, steps=1), X, y)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"weight_decay": -1.0}, "weight_decay=-1.0"),
        ({"steps": 0}, "steps=0"),
        ({"steps": 1.5}, "steps=1.5"),
        ({"learning_rate": 0.0}, "learning_rate=0.0"),
        ({"dtype": "float16"}, "dtype='float16'"),
        ({"network": "mlp"}, "network='mlp'"),
    ],
)
def test_impossible_options_are_refused_in_a_sentence(options, sentence):
    with pytest.raises(InputError, match=sentence):
        AdamW(**{"network": NETWORK, "weight_decay": 1e-3, **options})


def test_recipe_ends_in_a_fitted_model_fixed_by_its_seed():
    X, y = problem()
    recipe = AdamW(NETWORK, weight_decay=1e-2, steps=200)
    first, again, other = (recipe(X, y, seed=seed) for seed in (0, 0, 1))
    leaves = [jax.tree.leaves(fitted.params) for fitted in (first, again, other)]
    assert all(np.array_equal(a, b) for a, b in zip(leaves[0], leaves[1], strict=True))
    assert not np.array_equal(leaves[0][0], leaves[2][0])
    trained = train(recipe, X, y)
    for a, b in zip(leaves[0], jax.tree.leaves(trained), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("rows", [1001, 1500, 2750])  # not filled, filled and not filled blocks
def test_many_rows_in_blocks_give_the_gradient_by_hand(rows, outputs):
    network = Network((2, 6, outputs), "tanh", initial=VarianceScaling())
    X, y = problem(n=rows, outputs=outputs)
    weights = np.random.default_rng(3).uniform(0.0, 2.0, rows)
    params = network.init(1)
    with jax.enable_x64(True):
        fit = objective.Fit(*map(jax.numpy.asarray, (X, y.reshape(rows, outputs), weights, 0.3)))
        value, slope = objective.value_and_gradient(network, params, fit, penalty=False)
        full_value, full_slope = objective.value_and_gradient(network, params, fit, penalty=True)
        assert "scan" in str(
            jax.make_jaxpr(lambda at: objective.value_and_gradient(network, at, fit, penalty=True))(params)
        )
        error = np.asarray(network(params, X)).reshape(rows, outputs) - y.reshape(rows, outputs)
    square = sum(np.sum(leaf**2) for leaf in jax.tree.leaves(params))
    assert float(value) == pytest.approx(np.sum(weights[:, None] * error**2) / (2 * rows), rel=1e-13)
    assert float(full_value) == pytest.approx(float(value) + 0.15 * square, rel=1e-13)
    for layer, full, other, theta in zip(slope, full_slope, gradient(params, X, y, weights), params, strict=True):
        for k in layer:
            np.testing.assert_allclose(layer[k], other[k], rtol=1e-11, atol=1e-15)
            np.testing.assert_allclose(full[k], other[k] + 0.3 * theta[k], rtol=1e-11, atol=1e-15)


def test_up_to_a_thousand_rows_nothing_is_split():
    for rows, split in ((1000, False), (1001, True)):
        X, y = problem(n=rows)
        with jax.enable_x64(True):
            fit = objective.Fit(X, y[:, None], np.ones(rows), 0.3)
            found = jax.make_jaxpr(partial(objective.value_and_gradient, NETWORK, penalty=False))
            text = str(found(NETWORK.init(0), fit))
        assert ("scan" in text) == split


def test_training_on_many_rows_ends_where_all_rows_at_once_end(monkeypatch):
    """In float64: in float32 the rounding of any other order of the rows grows over hundreds of steps."""
    X, y = problem(n=1700)
    resample = np.random.default_rng(0).multinomial(1700, np.full(1700, 1 / 1700)).astype(float)
    recipe = AdamW(NETWORK, weight_decay=0.1, steps=30, dtype="float64")
    blocks = train(recipe, X, y, sample_weight=resample)
    monkeypatch.setattr(objective, "_WHOLE_ROWS", 10_000)
    training._advance.clear_cache()
    whole = train(recipe, X, y, sample_weight=resample)
    training._advance.clear_cache()
    for layer, other in zip(blocks, whole, strict=True):
        for k in layer:
            np.testing.assert_allclose(layer[k], other[k], rtol=1e-11, atol=1e-14)
