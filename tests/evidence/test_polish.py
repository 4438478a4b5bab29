"""Polish ends at a certified minimum or says why not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
from jax.flatten_util import ravel_pytree

import vhat
from tests import oracle
from vhat.errors import InputError, NotPositiveDefinite, PolishError
from vhat.evidence.minimise import newton
from vhat.evidence.minimise.polish import polish
from vhat.evidence.minimise.quasi_newton import quasi_newton
from vhat.evidence.minimise.spectral_step import Spectral
from vhat.evidence.minimise.stationarity import decrease, evaluate, relative_gradient, units
from vhat.evidence.minimise.steihaug_step import Steihaug
from vhat.fit import Network
from vhat.linalg.curvature import assemble
from vhat.linalg.curvature.inner_product import Jacobi, jacobi
from vhat.linalg.curvature.kinks import Kinks
from vhat.models.jax import jax_problem
from vhat.models.problem import Problem
from vhat.study import MaternTruth, sample

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * RNG.normal(size=60)
TANH = oracle.network("tanh", None)
START = oracle.random_params(np.random.default_rng(1), 2, 6, None)


def network():
    return jax_problem(TANH, START, X, Y, weight_decay=1e-3)


def linear(p, X):
    return X @ p


@pytest.fixture
def matrix_free(monkeypatch):
    monkeypatch.setattr(newton, "_SPECTRAL", 0)


@pytest.fixture(params=["spectral", "matrix-free"])
def way(request, monkeypatch):
    if request.param == "matrix-free":
        monkeypatch.setattr(newton, "_SPECTRAL", 0)
    return request.param


def derivatives(predict, params, X, y, decay):
    """Gradient and Hessian of the penalised objective, dense, straight from the formula."""
    with jax.enable_x64(True):
        theta, unravel = ravel_pytree(jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), params))

        def objective(t):
            return jnp.mean((predict(unravel(t), X) - y) ** 2) / 2 + decay / 2 * jnp.sum(t**2)

        return np.asarray(jax.grad(objective)(theta)), np.asarray(jax.hessian(objective)(theta))


# -- minima ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("way")
def test_ridge_ends_at_the_closed_form():
    polished = polish(jax_problem(linear, np.zeros(2), X, Y, weight_decay=0.1))
    expected = np.linalg.solve(X.T @ X / 60 + 0.1 * np.eye(2), X.T @ Y / 60)
    np.testing.assert_allclose(polished.problem.theta, expected, rtol=1e-9)
    assert polished.definiteness.verdict == "positive"


@pytest.mark.usefixtures("way")
def test_a_network_ends_at_a_minimum_by_dense_derivatives():
    polished = polish(network())
    gradient, hessian = derivatives(TANH, polished.problem.params, X, Y, 1e-3)
    assert polished.relative_gradient <= 1e-10
    assert np.linalg.norm(gradient) <= 1e-10
    assert polished.gradient_norm == pytest.approx(np.linalg.norm(gradient), rel=1e-2, abs=1e-14)
    assert np.linalg.eigvalsh(hessian)[0] > 0
    assert polished.definiteness.verdict == "positive"
    assert polished.status == "converged"


@pytest.mark.usefixtures("way")
def test_scipy_finds_nothing_lower_nearby():
    polished = polish(network())
    _, unravel = ravel_pytree(polished.problem.params)

    def objective(t):
        with jax.enable_x64(True):
            return float(np.mean((TANH(unravel(t), X) - Y) ** 2) / 2 + 1e-3 / 2 * np.sum(t**2))

    theta = np.asarray(polished.problem.theta)
    found = scipy.optimize.minimize(objective, theta + 1e-3 * RNG.normal(size=len(theta)), method="BFGS")
    assert polished.objective == pytest.approx(objective(theta), rel=1e-12)
    assert found.fun >= polished.objective - 1e-12
    np.testing.assert_allclose(found.x, theta, atol=2e-2)


@pytest.mark.usefixtures("way")
def test_badly_scaled_parameters_reach_the_answer_of_curve_fit():
    t = np.linspace(0, 5, 40)
    y = 2.5e3 * np.exp(-1.3e-4 * 1e4 * t) + 50 * np.random.default_rng(4).normal(size=40)
    problem = jax_problem(lambda p, x: p[0] * jnp.exp(-1e4 * p[1] * x), np.array([1e3, 1e-4]), t, y, weight_decay=0.0)
    polished = polish(problem)
    expected, _ = scipy.optimize.curve_fit(lambda x, a, b: a * np.exp(-1e4 * b * x), t, y, p0=[1e3, 1e-4])
    np.testing.assert_allclose(polished.problem.theta, expected, rtol=1e-6)


@pytest.mark.usefixtures("way")
def test_the_rosenbrock_valley_is_followed_to_an_exact_fit():
    def residuals(p, X):
        return jnp.where(X == 0, 10 * (p[1] - p[0] ** 2), 1 - p[0])

    polished = polish(jax_problem(residuals, np.array([-1.2, 1.0]), np.arange(2), np.zeros(2), weight_decay=0.0))
    np.testing.assert_allclose(polished.problem.theta, 1.0, rtol=1e-10)


def test_other_losses_outputs_weights_and_zero_decay_are_polished():
    rng = np.random.default_rng(5)
    params = oracle.random_params(rng, 2, 5, 2)
    decay = {"w": 1e-3, "b": 1e-3, "v": 1e-2, "c": 0.0}
    y = np.stack([Y, X[:, 1]], axis=1)
    weight = rng.uniform(0.5, 2, size=60)
    problem = jax_problem(
        oracle.network("softplus", 2), params, X, y, weight_decay=decay, loss=oracle.log_cosh, sample_weight=weight
    )
    polished = polish(problem)
    assert polished.relative_gradient <= 1e-10
    assert polished.definiteness.verdict == "positive"


def test_torch_and_numpy_reach_the_minimum_that_jax_reaches():
    torch = pytest.importorskip("torch")
    from vhat.models.numpy import numpy_problem
    from vhat.models.torch import torch_problem

    there = polish(network()).problem
    best = {name: np.asarray(value) for name, value in there.params.items()}
    start = {name: value + 1e-4 for name, value in best.items()}
    module = torch.nn.Sequential(
        torch.nn.Linear(2, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1), torch.nn.Flatten(0)
    ).double()
    values = (start["w"].T, start["b"], start["v"].T, start["c"])
    for parameter, value in zip(module.parameters(), values, strict=True):
        parameter.data = torch.as_tensor(value.copy())
    problems = [torch_problem(module, X, Y, weight_decay=1e-3)]
    theta = np.concatenate([value.ravel() for value in values])

    def by_hand(t, X):
        return np.tanh(X @ t[:12].reshape(6, 2).T + t[12:18]) @ t[18:24] + t[24]

    problems.append(numpy_problem(by_hand, theta, X, Y, weight_decay=1e-3))
    for problem in problems:
        polished = polish(problem, warmup=0)
        assert polished.definiteness.verdict == "positive"
        np.testing.assert_allclose(polished.problem.fitted_values, there.fitted_values, atol=1e-6)


def test_a_minimum_is_left_alone():
    first = polish(network())
    again = polish(first.problem)
    assert (again.warmup_steps, again.steps, again.escapes) == (0, 0, 0)
    np.testing.assert_array_equal(again.problem.theta, first.problem.theta)


def test_near_a_minimum_both_ways_end_in_it(monkeypatch):
    there = polish(network()).problem
    with there.scope():
        near = there.at(there.theta + 1e-5 * RNG.normal(size=there.p))
    ends = []
    for most in (200, 0):
        monkeypatch.setattr(newton, "_SPECTRAL", most)
        ends.append(polish(near, warmup=0).problem.theta)
    for end in ends:
        np.testing.assert_allclose(end, there.theta, atol=1e-7)


@pytest.mark.usefixtures("way")
def test_the_rounding_floor_ends_the_iteration():
    polished = polish(network(), gtol=1e-30)
    assert polished.status == "rounding floor"
    assert polished.relative_gradient <= 1e-12
    assert polished.steps <= 100


# -- saddles --------------------------------------------------------------------------------


@pytest.mark.usefixtures("way")
def test_an_exact_saddle_is_left():
    centred = X - X.mean(0), Y - Y.mean()
    zero = {"w": np.zeros((2, 3)), "b": np.zeros(3), "v": np.zeros((3, 1)), "c": np.zeros(1)}
    problem = jax_problem(TANH, zero, *centred, weight_decay=1e-3)
    with problem.scope():
        assert evaluate(problem).gradient_norm <= 1e-15
    polished = polish(problem)
    assert polished.escapes >= 1
    assert polished.objective < 0.2 * np.mean(centred[1] ** 2) / 2
    assert polished.definiteness.verdict == "positive"


@pytest.mark.usefixtures("way")
def test_identical_units_are_told_apart():
    params = {"w": np.full((2, 4), 0.5), "b": np.zeros(4), "v": np.full((4, 1), 0.2), "c": np.zeros(1)}
    polished = polish(jax_problem(TANH, params, X, Y, weight_decay=1e-3))
    assert np.ptp(polished.problem.params["v"]) > 0.1
    assert polished.definiteness.verdict == "positive"


# -- refusals -------------------------------------------------------------------------------


def test_kinks_are_refused_before_the_first_step_and_with_a_remedy():
    params = oracle.random_params(np.random.default_rng(2), 2, 12, None)
    problem = jax_problem(oracle.network("relu", None), params, X, Y, weight_decay=1e-3)
    with pytest.raises(PolishError, match=r"kinks .*linearised\(validation=\(X, y\)\).* softplus"):
        polish(problem, progress=lambda *_: pytest.fail("a step was taken"))


@pytest.mark.usefixtures("way")
def test_kinks_that_structure_does_not_show_are_refused_with_what_was_reached_and_a_remedy(monkeypatch):
    monkeypatch.setitem(polish.__globals__, "find_kinks", lambda problem: Kinks("unknown"))
    params = oracle.random_params(np.random.default_rng(2), 2, 12, None)
    problem = jax_problem(oracle.network("relu", None), params, X, Y, weight_decay=1e-3)
    with pytest.raises(PolishError, match=r"relative gradient .* smallest eigenvalue .* softplus .* curvature=\"ggn\""):
        polish(problem, warmup=300, max_steps=200)


def test_collinear_columns_without_decay_are_called_singular():
    doubled = np.column_stack([X, X.sum(1)])
    with pytest.raises(PolishError, match=r"singular.*weight_decay above 0"):
        polish(jax_problem(linear, np.zeros(3), doubled, Y, weight_decay=0.0))


def test_a_parameter_without_influence_or_decay_is_named():
    with pytest.raises(NotPositiveDefinite, match="position 2"):
        polish(jax_problem(lambda p, X: X @ p[:2], np.zeros(3), X, Y, weight_decay=0.0))


def test_too_few_steps_are_reported():
    with pytest.raises(PolishError, match=r"max_steps=2.*Raise max_steps"):
        polish(network(), warmup=0, max_steps=2)


def test_parameters_that_are_not_finite_are_refused():
    problem = network()
    with problem.scope(), pytest.raises(InputError, match="not finite"):
        polish(problem.at(np.full(problem.p, np.nan)))


@pytest.mark.parametrize("options", [{"gtol": 0.0}, {"gtol": 2.0}, {"max_steps": 0}, {"warmup": -1}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(InputError, match=next(iter(options))):
        polish(network(), **options)


# -- units, progress, seams -----------------------------------------------------------------


@pytest.mark.usefixtures("way")
def test_the_unit_of_y_changes_nothing():
    a = 2.0**10
    here = polish(jax_problem(TANH, START, X, Y, weight_decay=1e-3))
    there = polish(jax_problem(lambda p, X: a * TANH(p, X), START, X, a * Y, weight_decay=a**2 * 1e-3))
    np.testing.assert_allclose(there.problem.theta, here.problem.theta, rtol=1e-7, atol=1e-9)
    assert there.objective == pytest.approx(a**2 * here.objective, rel=1e-10)
    assert there.definiteness.value == pytest.approx(here.definiteness.value, rel=1e-6)


@pytest.mark.usefixtures("way")
def test_the_unit_of_a_parameter_changes_nothing():
    a = 2.0**-12
    decay = dict.fromkeys(START, 1e-3)
    here = polish(jax_problem(TANH, START, X, Y, weight_decay=decay))

    def other(p, X):
        return TANH({**p, "w": p["w"] * a}, X)

    decay_other = {**decay, "w": a**2 * 1e-3}
    there = polish(jax_problem(other, {**START, "w": START["w"] / a}, X, Y, weight_decay=decay_other))
    np.testing.assert_allclose(there.problem.params["w"] * a, here.problem.params["w"], rtol=1e-6, atol=1e-8)
    assert there.objective == pytest.approx(here.objective, rel=1e-10)
    assert there.definiteness.value == pytest.approx(here.definiteness.value, rel=1e-6)


def test_the_relative_gradient_has_no_unit():
    problems = [
        jax_problem(TANH, START, X, Y, weight_decay=1e-3),
        jax_problem(lambda p, X: 7 * TANH(p, X), START, X, 7 * Y, weight_decay=49e-3),
        jax_problem(TANH, START, X, Y, weight_decay=2e-3, loss="mse"),
        jax_problem(TANH, START, X, Y, weight_decay=3e-3, sample_weight=np.full(60, 3.0)),
    ]
    values = []
    for problem in problems:
        with problem.scope():
            values.append(relative_gradient(evaluate(problem), units(problem)))
    np.testing.assert_allclose(values, values[0], rtol=1e-12)


def test_progress_counts_every_step_and_the_objective_falls():
    seen = []
    polished = polish(network(), progress=lambda *args: seen.append(args))
    steps, objectives, relative = zip(*seen, strict=True)
    assert list(steps) == list(range(1, len(seen) + 1))
    assert objectives[-1] < objectives[0]
    assert relative[-1] <= 1e-9
    assert len(seen) == polished.warmup_steps + polished.steps


def test_an_interruption_leaves_the_problem_as_it_was():
    problem = network()
    before = np.array(problem.theta)

    def interrupt(step, objective, relative):
        if step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        polish(problem, progress=interrupt)
    np.testing.assert_array_equal(problem.theta, before)
    assert polish(problem).definiteness.verdict == "positive"


class GaussNewton:
    """The metric J'J/n + lam, dense: what a dual solver will supply."""

    def __init__(self, problem):
        self.problem, self.M = problem, assemble(problem, "ggn")
        self.factor = scipy.linalg.cho_factor(self.M)

    def apply(self, v):
        return self.problem.native(self.M @ self.problem.numpy(v))

    def solve(self, v):
        return self.problem.native(scipy.linalg.cho_solve(self.factor, self.problem.numpy(v)))

    def draw(self, problem, seed):
        values, vectors = np.linalg.eigh(self.M)
        return problem.native(vectors @ (np.random.default_rng(seed).standard_normal(problem.p) / np.sqrt(values)))


@pytest.mark.usefixtures("matrix_free")
def test_a_better_metric_saves_products():
    """Both start from one point near the minimum: where a warm-up ends depends on the rounding of the machine."""
    minimum = polish(network()).problem
    with minimum.scope():
        move = minimum.native(0.05 * np.random.default_rng(0).standard_normal(minimum.p))
        near = minimum.at(minimum.theta + move)
    plain, better = polish(near, warmup=0), polish(near, warmup=0, metric=GaussNewton)
    assert better.definiteness.verdict == "positive"
    assert better.relative_gradient <= 1e-10
    assert better.products / better.steps < 0.7 * plain.products / plain.steps


def counted(monkeypatch):
    """Count the rows that Hessian products are asked for, apart from the record's own count."""
    rows = []
    product = Problem.product

    def counting(self, v, curvature):
        rows.append(len(v) if curvature == "hessian" else 0)
        return product(self, v, curvature)

    monkeypatch.setattr(Problem, "product", counting)
    return rows


@pytest.fixture(scope="module")
def wide():
    """A network with more parameters (1,537) than are decided from the matrix, and more than rows (100)."""
    network = Network((10, 128, 1), "tanh")
    data = sample(MaternTruth(dimension=10, amplitude=0.1, seed=0), 100, seed=1)
    return network, data, vhat.from_jax(network, network.init(0), data.X, data.y, weight_decay=3e-4)


def test_products_are_few_and_honestly_counted(wide, monkeypatch):
    network, data, fitted = wide
    rows = counted(monkeypatch)
    end = fitted.polish()
    assert end.polished.products == sum(rows)
    certificate = end.polished.definiteness
    assert certificate.verdict == "positive"
    assert certificate.assured
    assert end.polished.products - certificate.steps <= 100  # 21 when this was written; after plain L-BFGS, 1,100
    gradient, hessian = derivatives(network, end.params, data.X, data.y, 3e-4)
    assert np.linalg.norm(gradient) <= 1e-10
    np.linalg.cholesky(hessian)


@pytest.mark.usefixtures("matrix_free")
def test_newton_alone_counts_honestly_too(monkeypatch):
    problem = network()
    rows = counted(monkeypatch)
    assert polish(problem, metric=GaussNewton, warmup=0).products == sum(rows)


# -- the ways down ----------------------------------------------------------------------------


def test_l_bfgs_in_the_metric_needs_no_product(monkeypatch):
    problem = network()
    with problem.scope():
        start = newton.Descent.begin(evaluate(problem), GaussNewton)
        rows = counted(monkeypatch)
        end, taken = quasi_newton(start, gtol=1e-8, max_steps=500, metric=GaussNewton)
        assert end.relative <= 1e-8
    gradient, _ = derivatives(TANH, end.point.problem.params, X, Y, 1e-3)
    assert sum(rows) == 0
    assert 0 < taken < 500
    assert np.linalg.norm(gradient) <= 1e-8
    assert end.radius > 0
    assert end.products == 0


def test_the_metric_shortens_l_bfgs():
    problem = network()
    taken = []
    with problem.scope():
        for metric in (GaussNewton, jacobi):
            start = newton.Descent.begin(evaluate(problem), metric)
            taken.append(quasi_newton(start, gtol=1e-6, max_steps=2000, metric=metric)[1])
    assert taken[0] < taken[1]


@pytest.mark.usefixtures("matrix_free")
def test_bent_steps_follow_a_curved_valley_in_fewer(monkeypatch):
    def residuals(p, X):
        return jnp.where(X == 0, 100 * (p[1] - p[0] ** 2), 1 - p[0])

    problem = jax_problem(residuals, np.array([-1.2, 1.0]), np.arange(2), np.zeros(2), weight_decay=1e-6)
    bent = polish(problem, metric=GaussNewton, warmup=0)
    monkeypatch.setattr(newton, "_CORRECTIONS", 0)
    straight = polish(problem, metric=GaussNewton, warmup=0)
    np.testing.assert_allclose(bent.problem.theta, straight.problem.theta, rtol=1e-6)
    assert bent.steps < 0.5 * straight.steps


def test_a_decrease_below_rounding_is_read_from_the_gradients():
    A, g = X.T @ X / 60 + 0.1 * np.eye(2), X.T @ Y / 60
    best = np.linalg.solve(A, g)
    problem = jax_problem(linear, best, X, Y, weight_decay=0.1)
    away = np.array([3e-8, -1e-8])
    expected = away @ A @ away / 2
    with problem.scope():
        end = evaluate(problem)
        start = evaluate(problem.at(end.problem.theta + away))
        measured = units(problem)
        assert not measured.resolve(expected)
        assert decrease(start, end, expected, measured) == pytest.approx(expected, rel=1e-6, abs=0)
        assert start.objective - end.objective != pytest.approx(expected, rel=1e-2, abs=0)


# -- one step -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def valley():
    """A point near a minimum (positive definite) and a random one (indefinite), with dense A, g and s."""
    random = network()
    with random.scope():
        minimum = polish(random).problem
        near = minimum.at(minimum.theta + 1e-6 * RNG.normal(size=random.p))
        return {name: _dense_model(problem) for name, problem in (("definite", near), ("indefinite", random))}


def _dense_model(problem):
    s = np.asarray(units(problem).scale)
    return problem, assemble(problem, "hessian"), np.asarray(evaluate(problem).gradient), s


def test_an_inner_step_of_either_kind_is_newtons(valley):
    problem, A, g, s = valley["definite"]
    with problem.scope():
        native = problem.native(s)
        spectral = Spectral(problem, problem.native(g), native).step(1e6)
        steihaug = Steihaug(problem, problem.native(g), Jacobi(native), 1e-12, 500).step(1e6)
    newton_step = -np.linalg.solve(A, g)
    for step in (spectral, steihaug):
        assert not step.boundary
        assert not step.negative
        np.testing.assert_allclose(step.direction, newton_step, rtol=1e-6, atol=1e-8)
        assert step.decrease == pytest.approx(-g @ newton_step / 2, rel=1e-8)
        assert step.length == pytest.approx(np.linalg.norm(s * newton_step), rel=1e-6)


@pytest.mark.parametrize("kind", ["definite", "indefinite"])
def test_a_cut_step_ends_on_the_boundary_and_the_spectral_one_is_the_best(valley, kind):
    problem, A, g, s = valley[kind]
    radius = 0.1 * np.linalg.norm(g / s)
    with problem.scope():
        native = problem.native(s)
        spectral = Spectral(problem, problem.native(g), native).step(radius)
        steihaug = Steihaug(problem, problem.native(g), Jacobi(native), 1e-12, 500).step(radius)
    for step in (spectral, steihaug):
        d = np.asarray(step.direction)
        assert step.boundary
        assert np.linalg.norm(s * d) == pytest.approx(radius, rel=1e-6)
        assert step.decrease == pytest.approx(-g @ d - d @ A @ d / 2, rel=1e-6)
    assert spectral.decrease >= steihaug.decrease * (1 - 1e-9)
    cauchy = -radius * (g / s**2) / np.linalg.norm(g / s)
    assert steihaug.decrease >= (-g @ cauchy - cauchy @ A @ cauchy / 2) * (1 - 1e-9)


@pytest.mark.parametrize("kind", ["definite", "indefinite"])
def test_a_smaller_radius_is_answered_without_a_product(valley, kind):
    problem, A, g, s = valley[kind]
    far = 0.5 * np.linalg.norm(g / s)
    with problem.scope():
        model = Steihaug(problem, problem.native(g), Jacobi(problem.native(s)), 1e-12, 500)
        steps = [model.step(far * shrink) for shrink in (1, 0.5, 0.1, 1e-3)]
    assert steps[0].products > 0
    for step, shrink in zip(steps[1:], (0.5, 0.1, 1e-3), strict=True):
        d = np.asarray(step.direction)
        cauchy = -far * shrink * (g / s**2) / np.linalg.norm(g / s)
        assert step.products == 0
        assert step.boundary
        assert np.linalg.norm(s * d) == pytest.approx(far * shrink, rel=1e-6)
        assert step.decrease == pytest.approx(-g @ d - d @ A @ d / 2, rel=1e-6)
        assert step.decrease >= (-g @ cauchy - cauchy @ A @ cauchy / 2) * (1 - 1e-9)


def test_negative_curvature_is_followed_to_the_boundary(valley):
    problem, _, g, s = valley["indefinite"]
    with problem.scope():
        step = Steihaug(problem, problem.native(g), Jacobi(problem.native(s)), 1e-12, 500).step(1e6)
    assert step.negative
    assert step.boundary
    assert step.length == 1e6


def test_the_spectral_step_leaves_an_exact_saddle(valley):
    problem, A, _, s = valley["indefinite"]
    with problem.scope():
        step = Spectral(problem, problem.native(np.zeros(problem.p)), problem.native(s)).step(0.5)
    smallest = np.linalg.eigvalsh(A / s / s[:, None])[0]
    assert step.decrease == pytest.approx(-smallest * 0.5**2 / 2, rel=1e-9)
