"""Intervals: every bound, target, way of taking points together, and the sentence that goes with them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import vhat
from vhat.variance.workspace import Workspace

RNG = np.random.default_rng(0)
N, P, LAM, SIGMA = 40, 3, 0.05, 0.3
X = RNG.normal(size=(N, P))
Y = X @ [1.0, -2.0, 0.5] + SIGMA * RNG.standard_normal(N)
POINTS = RNG.normal(size=(6, P))
A = X.T @ X / N + LAM * np.eye(P)
THETA = np.linalg.solve(A, X.T @ Y / N)
ROWS = POINTS @ np.linalg.solve(A, X.T) / N  # d f(x) / d y, from the closed form
V = N * np.sum(ROWS**2, axis=1)


def linear(q, Z):
    return Z @ q


@pytest.fixture(scope="module")
def fitted():
    """A model that is linear without its structure showing it: a NumPy function with a Jacobian of both arguments."""
    return vhat.from_numpy(linear, THETA, X, Y, jac=lambda q, Z: Z, weight_decay=LAM)


@pytest.mark.parametrize("bound", ["tight", "theorem", "sharp", "chebyshev", "asymptotic"])
def test_the_half_width_is_the_bound_at_the_closed_form_of_v(fitted, bound):
    band = fitted.interval(POINTS, 0.1, bound=bound, noise=SIGMA)
    np.testing.assert_allclose(band.half_width, getattr(vhat.bounds, bound)(V, N, SIGMA, 0.1), rtol=1e-10)
    np.testing.assert_allclose(band.upper - band.lower, 2 * band.half_width)
    np.testing.assert_allclose((band.upper + band.lower) / 2, POINTS @ THETA, rtol=1e-10)
    np.testing.assert_allclose(band.standard_error, SIGMA * np.sqrt(V / N), rtol=1e-10)
    assert band.noise_source == "given"
    assert band.df is None


def test_a_tail_widens_and_a_relative_tail_follows_v(fitted):
    options = {"noise": SIGMA, "bound": "tight"}
    plain = fitted.interval(POINTS, **options).half_width
    absolute = fitted.interval(POINTS, **options, tail=vhat.Tail(0.5, 0.1)).half_width
    relative = fitted.interval(POINTS, **options, tail=vhat.Tail.relative(0.3, 0.1)).half_width
    np.testing.assert_allclose(absolute, vhat.bounds.tight(V, N, SIGMA, 0.05, v=0.5, c=0.1), rtol=1e-10)
    np.testing.assert_allclose(relative, vhat.bounds.tight(V, N, SIGMA, 0.05, v=0.3 * V, c=0.1 * V), rtol=1e-10)
    assert np.all(absolute > plain)
    assert np.ptp(relative / plain) < 1e-10


ISOPERIMETRIC_TAILS = {
    "default": (None, lambda V: {"v": V / 2, "c": V / 4}),
    "constant": ("constant", lambda V: {}),
    "any": ("any", lambda V: {"v": np.inf}),
    "absolute": (vhat.Tail(0.5, 0.1), lambda V: {"v": 0.5, "c": 0.1}),
    "relative": (vhat.Tail.relative(0.3, 0.1), lambda V: {"v": 0.3 * V, "c": 0.1 * V}),
    "two moments": (vhat.Tail.sd(0.3), lambda V: {"sd": 0.3 * V}),
}


@pytest.mark.parametrize("name", ISOPERIMETRIC_TAILS)
@pytest.mark.parametrize("target", ["mean", "observation"])
def test_the_isoperimetric_bound_takes_every_tail(fitted, name, target):
    tail, options = ISOPERIMETRIC_TAILS[name]
    band = fitted.interval(POINTS, 0.1, tail=tail, noise=SIGMA, target=target)
    assert band.bound == "isoperimetric"
    fresh = {"observation_noise": SIGMA} if target == "observation" else {}
    expected = vhat.bounds.isoperimetric(V, N, SIGMA, 0.1, **options(V), **fresh)
    np.testing.assert_allclose(band.half_width, expected, rtol=1e-10)


def test_the_isoperimetric_bound_allows_for_estimated_noise(fitted):
    band = fitted.interval(POINTS, bound="isoperimetric", tail="constant")
    student = fitted.interval(POINTS, bound="asymptotic")
    assert band.df == student.df
    np.testing.assert_allclose(band.half_width, student.half_width, rtol=2e-3)
    assert np.all(band.half_width > student.half_width)
    assert "allowed for" in band.guarantee


@pytest.mark.parametrize("tail", ["constant", "any", vhat.Tail.sd(0.3)])
def test_tails_without_a_pair_are_for_the_isoperimetric_bound(fitted, tail):
    with pytest.raises(vhat.InputError, match="goes with bound='isoperimetric'"):
        fitted.interval(POINTS, bound="tight", tail=tail, noise=SIGMA)


def test_empirical_needs_a_tail_and_is_wider_than_its_plug_in(fitted):
    with pytest.raises(vhat.InputError, match="give tail"):
        fitted.interval(POINTS, bound="empirical")
    tail = vhat.Tail(0.2, 0.05)
    wide = fitted.interval(POINTS, noise=SIGMA, bound="empirical", tail=tail)
    assert np.all(wide.half_width > fitted.interval(POINTS, noise=SIGMA, bound="tight", tail=tail).half_width)


def test_estimated_noise_brings_student_t_with_the_residual_freedom(fitted):
    hat = X @ np.linalg.solve(A, X.T) / N
    df = np.linalg.norm(np.eye(N) - hat) ** 2
    sigma = np.linalg.norm(Y - X @ THETA) / np.sqrt(df)
    band = fitted.interval(POINTS, bound="asymptotic")
    assert band.df == pytest.approx(df, rel=1e-10)
    np.testing.assert_allclose(band.half_width, stats.t.ppf(0.975, df) * sigma * np.sqrt(V / N), rtol=1e-9)


def test_union_divides_delta_by_the_number_of_points(fitted):
    joint = fitted.interval(POINTS, 0.05, simultaneous=True)
    alone = fitted.interval(POINTS, 0.05 / 6)
    np.testing.assert_allclose(joint.half_width, alone.half_width, rtol=1e-12)
    assert "at all 6 points at once" in joint.guarantee


def test_sup_t_is_the_quantile_of_the_correlated_maximum(fitted):
    covariance = ROWS @ ROWS.T
    scale = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(scale, scale)
    band = fitted.interval(POINTS, 0.1, bound="asymptotic", simultaneous="sup-t", noise=SIGMA)
    quantile = float(band.half_width[0] / band.standard_error[0])
    np.testing.assert_allclose(band.half_width / band.standard_error, quantile, rtol=1e-10)
    # three parameters move six points: draw the three-dimensional law itself, independently
    draws = np.random.default_rng(1).multivariate_normal(np.zeros(6), correlation, 200_000, method="svd")
    inside = np.mean(np.abs(draws).max(axis=1) <= quantile)
    assert inside == pytest.approx(0.9, abs=4 * np.sqrt(0.09 / 40_000))
    assert quantile < stats.norm.ppf(1 - 0.1 / 12)


def test_sup_t_at_one_point_is_the_plain_quantile(fitted):
    one = fitted.interval(POINTS[:1], bound="asymptotic", simultaneous="sup-t", noise=SIGMA)
    error = 4 * np.sqrt(0.05 * 0.95 / 40_000) / (2 * stats.norm.pdf(1.96))
    assert float(one.half_width[0] / one.standard_error[0]) == pytest.approx(1.96, abs=error)


def test_an_observation_adds_the_noise_of_a_new_response(fitted):
    options = {"target": "observation", "noise": SIGMA, "bound": "tight"}
    band = fitted.interval(POINTS, 0.1, **options)
    expected = vhat.bounds.tight(V, N, SIGMA, 0.05) + SIGMA * stats.norm.ppf(1 - 0.05 / 2)
    np.testing.assert_allclose(band.half_width, expected, rtol=1e-10)
    noisier = fitted.interval(POINTS, 0.1, **options, observation_noise=2 * SIGMA)
    np.testing.assert_allclose(noisier.half_width - band.half_width, SIGMA * stats.norm.ppf(0.975), rtol=1e-9)
    each = fitted.interval(POINTS, **options, observation_noise=np.linspace(0.1, 1, 6))
    alone = fitted.interval(POINTS, 0.025, noise=SIGMA, bound="tight").half_width
    assert np.all(np.diff(each.half_width - alone) > 0)


def test_a_new_response_of_a_well_known_mean_has_the_normal_quantile(fitted):
    """W small beside the noise: the isoperimetric interval is that of the noise alone, to a few per cent."""
    band = fitted.interval(POINTS, 0.1, target="observation", noise=SIGMA)
    ratio = band.half_width / np.hypot(band.standard_error, SIGMA)
    assert np.all(ratio > stats.norm.ppf(0.95))
    assert np.all(ratio < 1.05 * stats.norm.ppf(0.95))


def test_per_row_noise_enters_row_by_row(fitted):
    sigma = np.linspace(0.1, 1.0, N)
    band = fitted.interval(POINTS, noise=sigma)
    np.testing.assert_allclose(band.standard_error, np.sqrt(np.sum((ROWS * sigma) ** 2, axis=1)), rtol=1e-10)
    assert band.noise == pytest.approx(np.sqrt(np.mean(sigma**2)))
    with pytest.raises(vhat.InputError, match="observation_noise"):
        fitted.interval(POINTS, noise=sigma, target="observation")


def test_plug_in_bias_is_the_penalty_seen_through_the_residuals(fitted):
    """|h' lam theta| = |1/n sum r_i g_i'h|: the pull of the penalty equals the pull of the residuals."""
    plain = fitted.interval(POINTS, noise=SIGMA)
    moved = fitted.interval(POINTS, noise=SIGMA, bias="plug-in")
    residuals = X @ THETA - Y
    np.testing.assert_allclose(moved.half_width - plain.half_width, np.abs(ROWS @ residuals), rtol=1e-8, atol=1e-14)
    given = fitted.interval(POINTS, noise=SIGMA, bias=0.25)
    np.testing.assert_allclose(given.half_width - plain.half_width, 0.25, rtol=1e-12)
    assert "bias no larger than the plug-in" in moved.guarantee


def test_the_word_guaranteed_is_not_used_while_anything_is_assumed(fitted):
    for options in ({}, {"noise": SIGMA}, {"noise": SIGMA, "tail": vhat.Tail(0.1, 0.1), "bound": "empirical"}):
        sentence = fitted.interval(POINTS, **options).guarantee
        assert "guaranteed" not in sentence
        assert "non-asymptotic" not in sentence
        assert "Gaussian noise" in sentence
    assert "estimated from residuals" in fitted.interval(POINTS).guarantee
    assert "V in place of its mean" in fitted.interval(POINTS).guarantee
    assert "delta method" in fitted.interval(POINTS, bound="asymptotic").guarantee
    assert "Gauss-Newton" in fitted.interval(POINTS, curvature="ggn").guarantee
    assert "certified minimum" in fitted.interval(POINTS).guarantee


def test_parameters_that_are_not_a_minimum_warn_once_and_say_so(fitted):
    off = vhat.from_jax(linear, THETA + 1.0, X, Y, weight_decay=LAM)
    with pytest.warns(vhat.NotMinimumWarning, match="stationarity fails"):
        band = off.interval(POINTS)
    assert "WHICH THEY ARE NOT" in band.guarantee
    assert "WHICH THEY ARE NOT" in off.interval(POINTS).guarantee  # and no second warning, or this test fails


def test_whether_they_are_a_minimum_is_undecided_where_the_solves_do_not_converge(monkeypatch):
    """One step of conjugate gradients on three parameters; the gradient is 1e-4 of its terms and may not matter."""
    monkeypatch.setattr(Workspace, "solver", vhat.CG(max_steps=1))
    off = vhat.from_jax(linear, THETA * (1 + 1e-4), X, Y, weight_decay=LAM)
    with pytest.warns(vhat.NotMinimumWarning, match="stationarity undecided: .*did not converge"):
        band = off.interval(POINTS, noise=0.1)
    assert "WHICH IS UNDECIDED" in band.guarantee
    assert "whether the parameters are a minimum is undecided" in band.guarantee
    assert "NOT" not in band.guarantee
    assert off.audit(noise=0.1)["basin"].remedy.startswith("Settle stationarity first, which is undecided")
    there = vhat.from_jax(linear, THETA, X, Y, weight_decay=LAM)  # a gradient of rounding needs no solve
    assert "UNDECIDED" not in there.interval(POINTS, noise=0.1).guarantee


def test_a_loss_that_does_not_see_the_responses_has_no_noise_to_compare_its_gradient_with():
    fitted = vhat.from_jax(linear, np.zeros(P), X, Y, weight_decay=LAM, loss=lambda f, y: 0.5 * jnp.sum(f**2))
    assert fitted.audit(noise=0.1)["stationarity"].verdict == "holds"


def test_results_print_export_and_abstain(fitted):
    band = fitted.interval(POINTS)
    text = repr(band)
    assert "95% confidence" in text
    assert "unsupported" in text
    frame = band.to_pandas()
    assert list(frame.columns[:3]) == ["center", "lower", "upper"]
    assert len(frame) == 6
    threshold = float(np.median(band.half_width))
    assert band.abstain(max_half_width=threshold).sum() == 3
    assert band.abstain(max_unsupported=1.0).sum() == 0
    assert len(band) == 6


def test_two_outputs_get_a_column_each_and_a_level_each():
    rng = np.random.default_rng(4)
    B = rng.normal(size=(P, 2))
    Y2 = X @ B + rng.standard_normal((N, 2)) * [0.1, 3.0]
    theta = np.linalg.solve(A, X.T @ Y2 / N)

    def both(q, Z):
        return Z @ q.reshape(P, 2)

    def jac(q, Z):
        return np.einsum("ni,ok->noik", Z, np.eye(2)).reshape(len(Z), 2, -1)

    fitted = vhat.from_numpy(both, theta.ravel(), X, Y2, jac=jac, weight_decay=LAM)
    band = fitted.interval(POINTS)
    hat = X @ np.linalg.solve(A, X.T) / N
    df = np.linalg.norm(np.eye(N) - hat) ** 2
    sigma = np.linalg.norm(Y2 - X @ theta, axis=0) / np.sqrt(df)
    np.testing.assert_allclose(band.noise, sigma, rtol=1e-9)
    np.testing.assert_allclose(band.standard_error, np.sqrt(V / N)[:, None] * sigma, rtol=1e-9)
    assert band.center.shape == (6, 2)
    assert band.to_pandas().index.names == ["point", "output"]
    per_output = fitted.interval(POINTS, target="observation")
    assert np.all(per_output.half_width[:, 1] > 5 * per_output.half_width[:, 0])
    assert fitted.sensitivity(POINTS).shape == (6, 2, N, 2)


def test_a_weighted_loss_that_is_not_square_takes_its_noise_from_the_score():
    """log cosh at the minimum of a location model: sensitivities by the implicit function theorem, by hand."""
    y = np.array([0.1, 0.4, -0.2, 0.9, 0.3])
    fitted = vhat.from_jax(
        lambda q, Z: q * jnp.ones(Z.shape[0]),
        0.0,
        np.zeros((5, 1)),
        y,
        weight_decay=0.1,
        loss=lambda f, t: jnp.logaddexp(f - t, t - f),
    ).polish()
    m = float(fitted.params)
    second = 1 / np.cosh(m - y) ** 2
    expected = second / (second.sum() + 5 * 0.1)
    np.testing.assert_allclose(fitted.sensitivity(np.zeros((1, 1)))[0], expected, rtol=1e-9)


def test_near_a_fold_the_noise_is_not_read_off_the_exact_smoother():
    """On a circle near its centre df/dy is far above one; |I - S|^2 would claim 362 degrees of freedom of 2 rows."""
    fitted = vhat.from_jax(
        lambda q, Z: Z @ jnp.stack([jnp.cos(q), jnp.sin(q)]),
        np.array(0.0),
        np.eye(2),
        np.array([0.05, 0.0]),
        weight_decay=0.0,
    )
    band = fitted.interval(np.eye(2))
    assert band.df == pytest.approx(1.0)
    assert band.noise == pytest.approx(0.95)
    assert "amplifies" in band.noise_source
    assert fitted.audit()["noise"].verdict == "undecided"


def test_sup_t_serves_new_responses_of_two_outputs():
    rng = np.random.default_rng(0)
    Y2 = X @ rng.normal(size=(P, 2)) + 0.1 * rng.standard_normal((N, 2))
    fitted = vhat.from_jax(linear, np.linalg.lstsq(X, Y2, rcond=None)[0], X, Y2, weight_decay=0.0)
    options = {"bound": "asymptotic", "target": "observation", "noise": 0.1}
    joint = fitted.interval(POINTS, simultaneous="sup-t", **options)
    alone = fitted.interval(POINTS, **options).half_width
    assert np.all(joint.half_width <= fitted.interval(POINTS, simultaneous=True, **options).half_width)
    # New responses are all but independent, and the largest of k independent normals has a quantile in closed form; the
    # simulated one is off by 0.15% in standard deviation, the correlation that is left takes some thousandths off.
    quantile = stats.norm.ppf((1 + 0.95 ** (1 / alone.size)) / 2)
    np.testing.assert_allclose(joint.half_width, alone * quantile / stats.norm.ppf(0.975), rtol=6e-3)
