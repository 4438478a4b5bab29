"""The default recipe ends at a minimum that independent derivatives confirm, or says why not."""

from __future__ import annotations

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import vhat
from vhat.errors import ConditioningWarning, InputError, PolishError
from vhat.fit import AdamW, Minimum, Network, fit_many, glorot, minimum, normal
from vhat.fit.training import Snapshot
from vhat.study import MaternTruth, sample

SMALL = Network((1, 5, 1), "tanh", initial=normal(1.0))


def small(n=40, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, size=(n, 1))
    return x, np.sin(2 * x[:, 0]) + 0.1 * rng.standard_normal(n)


def derivatives(network, params, X, y, lam):
    """Parameters, gradient and Hessian of 1/(2n) sum (f - y)^2 + lam/2 |theta|^2, dense, written out here."""
    with jax.enable_x64(True):
        theta, unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), params))

        def objective(t):
            hidden = jnp.asarray(X)
            *layers, last = unravel(t)
            for layer in layers:
                hidden = {"tanh": jnp.tanh, "softplus": jax.nn.softplus}[network.activation](
                    hidden @ layer["w"] + layer["b"]
                )
            f = (hidden @ last["w"] + last["b"])[:, 0]
            return jnp.mean((f - y) ** 2) / 2 + lam / 2 * jnp.sum(t**2)

        return tuple(np.asarray(a) for a in (theta, jax.grad(objective)(theta), jax.hessian(objective)(theta)))


def relative_gradient(network, params, X, y, lam):
    """The gradient without unit, |grad / s| / u, from the dense Jacobian and the definition of s and u."""
    with jax.enable_x64(True):
        theta, unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), params))
        predict = lambda t: network(unravel(t), jnp.asarray(X)).reshape(-1)  # noqa: E731
        f, J, theta = (np.asarray(a) for a in (predict(theta), jax.jacobian(predict)(theta), theta))
    s = np.sqrt(np.mean(J**2, axis=0) + lam)
    u = np.sqrt(np.mean((f - y) ** 2) + lam * theta @ theta + 1e-6 * np.mean(f**2))
    return np.linalg.norm((J.T @ (f - y) / len(y) + lam * theta) / s) / u


def assert_certified(fitted, network, X, y, lam):
    """The gradient is 1e-8 of what it balances, the Hessian has a Cholesky factor, and the audit shows both."""
    theta, gradient, hessian = derivatives(network, fitted.params, X, y, lam)
    assert np.linalg.norm(gradient) <= 1e-8 * lam * np.linalg.norm(theta)
    np.linalg.cholesky(hessian)
    assert fitted.polished.relative_gradient <= 1e-8
    assert fitted.polished.definiteness.verdict == "positive"
    audit = fitted.audit()
    assert audit["stationarity"].verdict == "holds"
    assert audit["alignment"].value == pytest.approx(1.0, abs=1e-6)
    assert audit["smallest eigenvalue"].verdict == "holds"
    assert audit["smallest eigenvalue"].value > audit["smallest eigenvalue"].threshold
    assert "moved" not in [line.name for line in audit]  # nobody held the warm-up


# -- the problems of the study ------------------------------------------------------------------


@pytest.mark.slow
def test_one_dimension_with_a_gap():
    data = sample(MaternTruth(dimension=1, seed=0), 100, seed=0)
    network = Network((1, 64, 1), "tanh", initial=(normal(3.0), glorot()))
    # The default stops at 1e-10 of the terms in natural units, which may be 2e-8 of lam |theta| here.
    fitted = Minimum(network, weight_decay=1e-5, gtol=1e-11)(data.X, data.y, seed=0)
    assert_certified(fitted, network, data.X, data.y, 1e-5)


@pytest.mark.slow
def test_ten_dimensions():
    data = sample(MaternTruth(dimension=10, seed=0, amplitude=0.1), 100, seed=0)
    network = Network((10, 256, 1), "tanh")
    fitted = Minimum(network, weight_decay=1e-3)(data.X, data.y, seed=0)
    assert_certified(fitted, network, data.X, data.y, 1e-3)


# -- small problems -------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["tanh", "softplus"])
def test_a_small_network_ends_at_a_minimum(activation):
    X, y = small()
    network = Network((1, 4, 3, 1), activation, initial=normal(1.0))
    assert_certified(Minimum(network, weight_decay=1e-3)(X, y, seed=1), network, X, y, 1e-3)


def test_the_same_seed_gives_the_same_minimum_and_the_x64_flag_is_left_alone():
    X, y = small()
    recipe = Minimum(SMALL, weight_decay=1e-2)
    first, again, other = (recipe(X, y, seed=seed) for seed in (0, 0, 1))
    for a, b in zip(jax.tree.leaves(first.params), jax.tree.leaves(again.params), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first.params[0]["w"], other.params[0]["w"])
    assert not jax.config.jax_enable_x64


def test_many_minima_are_those_of_each_resample_alone():
    X, y = small()
    counts = np.random.default_rng(0).multinomial(len(y), np.full(len(y), 1 / len(y)), size=2)
    recipe = Minimum(SMALL, weight_decay=1e-2)
    for fitted, weight in zip(fit_many(recipe, X, y, seeds=[3, 3], sample_weights=counts), counts, strict=True):
        repeated = recipe(np.repeat(X, weight, axis=0), np.repeat(y, weight), seed=3)
        np.testing.assert_allclose(fitted.predict(X), repeated.predict(X), atol=1e-7)


def test_no_warmup_is_allowed():
    X, y = small()
    fitted = Minimum(SMALL, weight_decay=1e-2, warmup=0)(X, y, seed=0)
    assert_certified(fitted, SMALL, X, y, 1e-2)


@pytest.mark.parametrize("level", [0.0, 2.0])
def test_a_constant_target_has_a_minimum(level):
    X, _ = small()
    fitted = Minimum(SMALL, weight_decay=1e-2)(X, np.full(len(X), level), seed=0)
    theta, gradient, hessian = derivatives(SMALL, fitted.params, X, level, 1e-2)
    assert np.linalg.norm(gradient) <= 1e-9
    assert np.linalg.eigvalsh(hessian)[0] > 0
    assert np.abs(fitted.predict(X) - level).max() <= 0.1 * level + 1e-6
    if level == 0:
        assert np.abs(theta).max() <= 1e-6


# -- descents that once stalled: a long curved valley, its floor flat to the last digits of the objective -----------


VALLEY = Network((1, 64, 1), "tanh", initial=(normal(3.0), glorot()))
STALLED = [(5, 1000), (7, 1000), (1, 300)]
OTHERS = [(seed, warmup) for warmup in (0, 300) for seed in range(10) if (seed, warmup) not in STALLED]


@pytest.mark.parametrize(("seed", "warmup"), [*STALLED, *(pytest.param(*at, marks=pytest.mark.slow) for at in OTHERS)])
def test_no_descent_into_the_valley_stalls(seed, warmup):
    data = sample(MaternTruth(dimension=1, seed=0), 100, seed=0)
    fitted = vhat.from_jax(VALLEY, VALLEY.init(seed), data.X, data.y, weight_decay=1e-5).polish(warmup=warmup)
    _, _, hessian = derivatives(VALLEY, fitted.params, data.X, data.y, 1e-5)
    np.linalg.cholesky(hessian)
    assert relative_gradient(VALLEY, fitted.params, data.X, data.y, 1e-5) <= 1e-8
    assert fitted.polished.status == "converged"
    assert fitted.polished.relative_gradient <= 1e-8
    assert fitted.polished.definiteness.verdict == "positive"


# -- how long to warm up --------------------------------------------------------------------------


def snapshots(*objectives):
    return [Snapshot(0.0, objective, 0.0, 0.0, 1.0) for objective in objectives]


def test_warm_up_goes_on_while_it_pays_then_falls_and_ends():
    recipe = Minimum(SMALL, weight_decay=1e-3, warmup=3_000, learning_rate=0.5)
    for going in (snapshots(), snapshots(1.0), snapshots(1.0, 0.9), snapshots(1.0, 0.9, 0.8)):
        np.testing.assert_array_equal(recipe._schedule(going), np.full(500, 0.5))
    falling = recipe._schedule(snapshots(1.0, 0.9, 0.89))
    np.testing.assert_allclose(falling, 0.5 * (1 - np.arange(500) / 500))
    assert recipe._schedule(snapshots(1.0, 0.9, 0.89, 0.5)) is None
    assert recipe._schedule(snapshots(1.0, 1.5))[-1] < 0.01  # a rise is no gain
    np.testing.assert_allclose(recipe._schedule(snapshots(5, 4, 3, 2, 1)), falling)  # the last chunk that is left
    assert recipe._schedule(snapshots(6, 5, 4, 3, 2, 1)) is None


# -- what it refuses, and what it warns of ----------------------------------------------------------


def test_relu_is_refused_in_words():
    with pytest.raises(InputError, match=r"relu.*kinks.*no minimum.*tanh.*softplus.*AdamW"):
        Minimum(Network((1, 8, 1), "relu"), weight_decay=1e-3)


def test_too_small_a_decay_is_warned_of_and_the_one_named_does():
    X, y = small()
    with pytest.warns(ConditioningWarning, match=r"data do not determine.*Raise weight_decay to about") as caught:
        fitted = Minimum(SMALL, weight_decay=1e-11)(X, y, seed=0)
    assert fitted.audit()["conditioning"].verdict == "undecided"
    named = float(re.search(r"to about (\S+)\.$", str(caught[0].message)).group(1))
    assert named > 1e-11
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        enough = Minimum(SMALL, weight_decay=named)(X, y, seed=0)
    assert enough.polished.definiteness.value >= 1e-8


def test_no_decay_on_undetermined_parameters_is_refused_and_the_one_named_does():
    X, y = small(n=10)
    with pytest.raises(PolishError, match=r"raise weight_decay=0.0 to about") as caught:
        Minimum(SMALL, weight_decay=0.0)(X, y, seed=0)
    named = float(re.search(r"to about (\S+)\.$", str(caught.value)).group(1))
    fitted = Minimum(SMALL, weight_decay=named)(X, y, seed=0)
    assert fitted.polished.definiteness.verdict == "positive"


def test_the_fit_without_a_minimum_is_named():
    X, y = small()
    with pytest.raises(PolishError, match=r"^fit 0: no minimum within max_steps=1.*Or: raise weight_decay"):
        Minimum(SMALL, weight_decay=1e-9, warmup=0, max_steps=1, gtol=1e-14).many(X, y, seeds=[0, 1])


@pytest.mark.parametrize(
    ("lam", "written"), [(1e-5, "1e-05"), (1.1e-5, "2e-05"), (2.1e-5, "5e-05"), (0.051, "1e-01"), (3.0, "5e+00")]
)
def test_a_lam_is_named_with_one_digit_rounded_up(lam, written):
    assert minimum._rounded_up(lam) == written


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"warmup": -1}, "warmup=-1"),
        ({"learning_rate": 0}, "learning_rate=0"),
        ({"gtol": 0.0}, "gtol=0.0"),
        ({"max_steps": 0}, "max_steps=0"),
        ({"weight_decay": float("inf")}, "weight_decay=inf"),
    ],
)
def test_impossible_options_are_refused_in_a_sentence(options, sentence):
    with pytest.raises(InputError, match=sentence):
        Minimum(**{"network": SMALL, "weight_decay": 1e-3, **options})


@pytest.mark.slow
def test_the_papers_recipe_ends_elsewhere():
    """The same data, network and decay as in ten dimensions above, by AdamW: the audit tells the two apart."""
    data = sample(MaternTruth(dimension=10, seed=0, amplitude=0.1), 100, seed=0)
    fitted = AdamW(Network((10, 256, 1), "tanh"), weight_decay=1e-3)(data.X, data.y, seed=0)
    audit = fitted.audit(noise=0.1)
    assert audit["alignment"].value < 0.2
    assert audit["stationarity"].verdict == "fails"
