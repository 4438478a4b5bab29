"""Models that are linear in their parameters by structure: recognised, never by mistake, and what that is used for."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import replace
from functools import partial

import equinox
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.interpolate import BSpline

import vhat
from vhat.models.jax import jax_problem
from vhat.models.jax.affine import is_affine
from vhat.models.numpy import curve_fit_problem, numpy_problem
from vhat.models.numpy.model import takes_inputs_alone
from vhat.models.scaling import Scaling

torch = pytest.importorskip("torch")
nn = torch.nn
from vhat.models.torch import affine, torch_problem  # noqa: E402  (torch may be missing)

N, P = 12, 3
X = np.random.default_rng(0).uniform(-2, 2, (N, P))
THETA = np.array([0.7, -1.3, 0.4])
Y = np.random.default_rng(1).standard_normal(N)


def assert_affine(problem, seed=0):
    """``f(theta + m) = f(theta) + J m`` to rounding, for moves far larger than the parameters."""
    rng = np.random.default_rng(seed)
    with problem.scope():
        theta = problem.numpy(problem.theta)
        J = problem.numpy(problem.gradients(problem.X)).reshape(problem.n, problem.outputs, problem.p)
        for size in (1.0, 30.0, 1000.0):
            move = size * rng.standard_normal(problem.p)
            moved = problem.at(problem.native(theta + move)).fitted_values
            expected = problem.fitted_values + J @ move
            assert np.abs(moved - expected).max() <= 1e-12 * (np.abs(J) @ np.abs(move) + np.abs(moved) + 1).max()


# -- JAX -----------------------------------------------------------------------------------------
KNOTS = np.concatenate([[-2.0] * 4, [0.0], [2.0] * 4])


def truncated_powers(x):
    """A cubic spline basis with fixed knots: what depends on x alone may be anything."""
    return jnp.stack([x**0, x, x**2, x**3, jnp.maximum(x - 0.5, 0.0) ** 3], axis=1)


JAX_LINEAR = {
    "dot": lambda q, x: x @ q,
    "affine": lambda q, x: x @ q + jnp.exp(x[:, 0]),
    "polynomial": lambda q, x: jnp.polyval(q, x[:, 0]),
    "vander": lambda q, x: jnp.vander(x[:, 0], P) @ q,
    "spline": lambda q, x: truncated_powers(x[:, 0])[:, :P] @ q,
    "interpolation": lambda q, x: jnp.interp(x[:, 0], jnp.linspace(-2.0, 2.0, P), q),
    "lookup": lambda q, x: q[jnp.clip(x[:, 0].astype(int), 0, P - 1)] * x[:, 1],
    "one_hot": lambda q, x: jax.nn.one_hot(jnp.clip(x[:, 0].astype(int), 0, P - 1), P) @ q,
    "two_outputs": lambda q, x: jnp.stack([x @ q, 2 * x[:, 0] * q[0] - q[1]], axis=1),
    "vmap": lambda q, x: jax.vmap(lambda row: jnp.sum(row * q) - jnp.mean(q))(x),
    "checkpoint": lambda q, x: jax.checkpoint(lambda q: x @ q)(q),
    "jit": lambda q, x: jax.jit(lambda q: x @ q / 3 - q[0])(q),
    "loop": lambda q, x: jax.lax.fori_loop(0, P, lambda k, s: s + q[k] * x[:, 0] ** k, jnp.zeros(len(x))),
    "chosen_by_inputs": lambda q, x: jnp.where(x[:, 0] > 0, x @ q, -(x @ q[::-1])),
    "assembled": lambda q, x: x @ q.at[0].set(1.0).at[1].add(q[0]) + q[0],
    "cumulative": lambda q, x: x @ jnp.cumsum(q),
    "convolution": lambda q, x: jax.vmap(lambda row: jnp.convolve(row, q)[2])(x),
    "float32": lambda q, x: (x @ q).astype(jnp.float32),
    "unused_result": lambda q, x: (x @ q, jnp.exp(q))[0],
}
JAX_OTHER = {
    "square": lambda q, x: x @ (q * q),
    "product": lambda q, x: x[:, 0] * q[0] * q[1] + x[:, 2] * q[2],
    "relu": lambda q, x: jax.nn.relu(x @ q),
    "abs": lambda q, x: x @ jnp.abs(q),
    "where": lambda q, x: x @ jnp.where(q > 0, q, 2 * q),
    "max": lambda q, x: jnp.maximum(x @ q, q[0]),
    "softplus": lambda q, x: jax.nn.softplus(x @ q),
    "normalised": lambda q, x: x @ (q / jnp.linalg.norm(q)),
    "reciprocal": lambda q, x: x[:, 0] / q[0] + x @ q,
    "sorted": lambda q, x: x @ jnp.sort(q),
    "clipped": lambda q, x: x @ jnp.clip(q, -10.0, 10.0),
    "index": lambda q, x: jnp.take(x, jnp.round(q[0]).astype(int), axis=1) * q[1] + x @ q,
    "branch": lambda q, x: jax.lax.cond(q[0] > -50, lambda q: x @ q, lambda q: x @ (q * q), q),
    "apply_at": lambda q, x: x @ q.at[0].apply(jnp.tanh),
    "recurrence": lambda q, x: jax.lax.scan(lambda s, _: (s * q[0], None), x @ q, length=2)[0],
    "bfloat16": lambda q, x: (x @ q).astype(jnp.bfloat16).astype(jnp.float64),
    "offset_by_product": lambda q, x: x @ q + 1e-9 * q[0] * q[1],
}


def in_jax(predict, params=THETA, x=X, **options):
    with jax.enable_x64(True):
        shape = jax.eval_shape(predict, params, x).shape
    y = np.random.default_rng(1).standard_normal(shape)
    return jax_problem(predict, params, x, y, weight_decay=1e-3, **options)


@pytest.mark.parametrize("name", JAX_LINEAR)
def test_a_jax_function_that_is_linear_in_its_parameters_is_recognised(name):
    def f(q, x):
        return jnp.asarray(JAX_LINEAR[name](q, x), jnp.float64)

    @jax.jit
    def by_both(move):
        here, change = jax.jvp(lambda q: f(q, jnp.asarray(X)), (jnp.asarray(THETA),), (move,))
        return f(jnp.asarray(THETA) + move, jnp.asarray(X)), here + change

    with jax.enable_x64(True):
        assert is_affine(lambda _, q, x: f(q, x), (), THETA, X)
        for seed, size in enumerate((1.0, 30.0, 1000.0)):
            moved, expected = by_both(size * np.random.default_rng(seed).standard_normal(P))
            assert np.abs(moved - expected).max() <= (1e-6 if name == "float32" else 1e-13) * 100 * size


@pytest.mark.parametrize("name", JAX_OTHER)
def test_a_jax_function_that_is_not_linear_is_not_recognised(name):
    f = JAX_OTHER[name]
    with jax.enable_x64(True):
        assert not is_affine(lambda _, q, x: f(q, x), (), THETA, X)


def test_a_recognised_jax_problem_predicts_far_away_by_its_jacobian():
    problem = in_jax(JAX_LINEAR["two_outputs"])
    assert problem.linear
    assert_affine(problem)


def test_linear_layers_of_flax_and_equinox_are_recognised_and_networks_are_not():
    dense, network = flax.linen.Dense(2), flax.linen.Sequential([flax.linen.Dense(4), jax.nn.relu, flax.linen.Dense(1)])
    for module, linear in ((dense, True), (network, False)):
        params = module.init(jax.random.key(0), X)
        assert is_affine(lambda _, q, x, module=module: module.apply(q, x), (), params, X) is linear
    layer = equinox.nn.Linear(P, 2, key=jax.random.key(1))
    network = equinox.nn.MLP(P, 1, 4, 1, key=jax.random.key(2))
    for model, linear in ((layer, True), (network, False)):
        arrays, others = equinox.partition(model, equinox.is_array)
        found = is_affine(lambda _, q, x, others=others: jax.vmap(equinox.combine(q, others))(x), (), arrays, X)
        assert found is linear


@pytest.mark.slow
def test_parameters_in_a_tree_with_codes_as_inputs_are_recognised():
    params = {"table": np.random.default_rng(3).standard_normal((4, 2)), "offset": 0.5}
    inputs = {"code": np.arange(N) % 4, "x": X[:, :2]}
    problem = in_jax(lambda q, r: jnp.sum(q["table"][r["code"]] * r["x"], axis=1) + q["offset"], params, inputs)
    assert problem.linear
    assert_affine(problem)


OPERATIONS = (
    lambda a, b, x, xp: a + b,
    lambda a, b, x, xp: a - 2 * b,
    lambda a, b, x, xp: a * x[0],
    lambda a, b, x, xp: a * b,
    lambda a, b, x, xp: a / (2 + x[1] ** 2),
    lambda a, b, x, xp: a / (3 + b[1]),
    lambda a, b, x, xp: x * xp.dot(a, b),
    lambda a, b, x, xp: a[::-1],
    lambda a, b, x, xp: xp.cumsum(a),
    lambda a, b, x, xp: xp.where(x > 0, a, b),
    lambda a, b, x, xp: xp.where(a > 0, a, b),
    lambda a, b, x, xp: xp.concatenate([a[1:], b[:1]]),
    lambda a, b, x, xp: xp.roll(a, 1) + x,
    lambda a, b, x, xp: xp.exp(x) + a,
    lambda a, b, x, xp: xp.maximum(a, b),
    lambda a, b, x, xp: xp.outer(a, x) @ x,
    lambda a, b, x, xp: xp.outer(a, b) @ x,
    lambda a, b, x, xp: xp.dot(x, x) * xp.tanh(x),
    lambda a, b, x, xp: xp.stack([b[1], a[0], a[2]]),
    lambda a, b, x, xp: xp.zeros_like(a) + x,
    lambda a, b, x, xp: xp.full(P, xp.mean(a)),
    lambda a, b, x, xp: xp.clip(a, -1.0, 1.0) + b,
    lambda a, b, x, xp: a.reshape(P, 1)[:, 0] - xp.abs(x) * b[0],
)


@pytest.mark.parametrize("seed", range(3))
def test_no_random_program_that_is_recognised_bends_anywhere(seed):
    """Of eighty random programs each, one to seven steps long; NumPy takes the same steps at two ends and midway."""
    rng = np.random.default_rng(seed)
    recognised = 0
    for _ in range(80):
        steps = [
            (OPERATIONS[rng.integers(len(OPERATIONS))], *rng.integers(0, 99, 2)) for _ in range(rng.integers(1, 8))
        ]

        def program(q, x, xp, steps=steps):
            values = [q, x, 2 * q]
            for operation, a, b in steps:
                values.append(operation(values[a % len(values)], values[b % len(values)], x, xp))
            return xp.sum(values[-1] * x) + values[-1][0]

        x = rng.uniform(-2, 2, P)
        with jax.enable_x64(True):
            affine = is_affine(lambda _, q, x, program=program: program(q, x, jnp), (), THETA, x)
        recognised += affine
        for one, other in rng.choice([1.0, 1000.0], (3, 1, 1)) * rng.standard_normal((3, 2, P)):
            middle = program((one + other) / 2, x, np)
            ends = program(one, x, np), program(other, x, np)
            assert not affine or abs(2 * middle - sum(ends)) <= 1e-11 * (1e3 + np.abs(ends).sum())
    assert 10 <= recognised <= 70


# -- torch ---------------------------------------------------------------------------------------
class Function(nn.Module):
    """``f(t, x)`` of one vector of parameters."""

    def __init__(self, f, size=P):
        super().__init__()
        self.t, self.f = nn.Parameter(torch.linspace(-1.0, 1.5, size)), f

    def forward(self, x):
        return self.f(self.t, x)


class Codes(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(5, 3), frozen(nn.Linear(3, 2))

    def forward(self, codes):
        return self.head(self.table(codes))


def frozen(module):
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    return module


def backbone():
    return frozen(nn.Sequential(nn.Linear(P, 6), nn.ReLU(), nn.BatchNorm1d(6), nn.Dropout(0.5)))


def in_place(t, x):
    y = x @ t
    y += t[0]
    y *= x[:, 0]
    return y


def filled(t, x):
    y = torch.zeros(len(x), 2, dtype=x.dtype)
    y[:, 0] = x @ t
    y[:, 1] = torch.exp(x[:, 0])
    return y


def filled_and_clipped(t, x):
    y = torch.zeros(len(x), dtype=x.dtype)
    y[:] = x @ t
    y.view(-1).relu_()
    return y + x @ t


def force(t, x):
    """The slope of an energy that is linear in t."""
    x = x.detach().requires_grad_()
    energy = ((x**2) @ t + torch.sin(x[:, 0]) * t[0]).sum()
    return torch.autograd.grad(energy, x, create_graph=True)[0][:, 0]


def read_by_numpy(t, x):
    return (1.0 if t.detach().numpy()[0] > -50 else -1.0) * (x @ t)


def listed(t, x):
    return (1.0 if t.tolist()[0] > -50 else -1.0) * (x @ t)


TORCH_LINEAR = {
    "linear": lambda: nn.Linear(P, 2),
    "head": lambda: nn.Sequential(backbone(), nn.Linear(6, 2)),
    "first_layer": lambda: nn.Sequential(nn.Linear(P, 4), frozen(nn.Linear(4, 1))),
    "fixed_statistics": lambda: nn.Sequential(nn.Linear(P, 4), frozen(nn.BatchNorm1d(4))),
    "scale_of_features": lambda: nn.Sequential(backbone(), nn.LayerNorm(6)),
    "convolution": lambda: nn.Sequential(nn.Unflatten(1, (1, P)), nn.Conv1d(1, 2, 2), nn.Flatten()),
    "affine": lambda: Function(lambda t, x: x @ t + torch.exp(x[:, 0])),
    "polynomial": lambda: Function(lambda t, x: torch.stack([x[:, 0] ** k for k in range(P)], 1) @ t),
    "bilinear": lambda: Function(lambda t, x: nn.functional.bilinear(x, x, t.reshape(1, P, P)), P * P),
    "einsum": lambda: Function(lambda t, x: torch.einsum("ni,i->n", x, t)),
    "vmap": lambda: Function(lambda t, x: torch.vmap(lambda row: row @ t)(x)),
    "chosen_by_inputs": lambda: Function(lambda t, x: torch.where(x[:, 0] > 0, x @ t, -(x @ t))),
    "in_place": lambda: Function(in_place),
    "filled": lambda: Function(filled),
    "force": lambda: Function(force),
    "zeros_like": lambda: Function(lambda t, x: x @ (t + torch.zeros_like(t))),
}
TORCH_OTHER = {
    "relu": lambda: nn.Sequential(nn.Linear(P, 4), nn.ReLU(), nn.Linear(4, 1)),
    "two_layers": lambda: nn.Sequential(nn.Linear(P, 4), nn.Linear(4, 1)),
    "both_of_batch_norm": lambda: nn.Sequential(nn.Linear(P, 4), nn.BatchNorm1d(4)),
    "layer_norm": lambda: nn.Sequential(nn.Linear(P, 4), nn.LayerNorm(4)),
    "square": lambda: Function(lambda t, x: x @ (t * t)),
    "product": lambda: Function(lambda t, x: x[:, 0] * t[0] * t[1] + x[:, 2] * t[2]),
    "abs": lambda: Function(lambda t, x: x @ t.abs()),
    "where": lambda: Function(lambda t, x: x @ torch.where(t > 0, t, 2 * t)),
    "max": lambda: Function(lambda t, x: torch.maximum(x @ t, t[0])),
    "softplus": lambda: Function(lambda t, x: nn.functional.softplus(x @ t)),
    "normalised": lambda: Function(lambda t, x: x @ (t / t.norm())),
    "reciprocal": lambda: Function(lambda t, x: x[:, 0] / (t[0] + 9)),
    "floor": lambda: Function(lambda t, x: x @ t + torch.div(t[0], 1e6, rounding_mode="floor")),
    "branch": lambda: Function(lambda t, x: x @ t if t[0] > -50 else x @ (t * t)),
    "half": lambda: Function(lambda t, x: (x @ t).half().double()),
    "clipped_in_place": lambda: Function(filled_and_clipped),
    "read_by_numpy": lambda: Function(read_by_numpy),
    "listed": lambda: Function(listed),
}


def in_torch(module, inputs=None):
    torch.manual_seed(0)
    module = module().double().eval()
    inputs = torch.tensor(X) if inputs is None else inputs
    return torch_problem(module, inputs, module(inputs).detach() + 0.1, weight_decay=1e-3)


@pytest.mark.parametrize("name", TORCH_LINEAR)
def test_a_module_that_is_linear_in_its_trained_parameters_is_recognised(name):
    problem = in_torch(TORCH_LINEAR[name])
    assert problem.linear
    assert_affine(problem)


@pytest.mark.parametrize("name", TORCH_OTHER)
def test_a_module_that_is_not_linear_is_not_recognised(name):
    assert not in_torch(TORCH_OTHER[name]).linear


def test_a_table_of_embeddings_is_recognised():
    problem = in_torch(Codes, torch.arange(N) % 5)
    assert problem.linear
    assert_affine(problem)


def test_a_module_of_very_many_operations_is_left_unrecognised(monkeypatch):
    assert in_torch(TORCH_LINEAR["polynomial"]).linear
    monkeypatch.setattr(affine, "_MAX_OPERATIONS", 5)
    assert not in_torch(TORCH_LINEAR["polynomial"]).linear


# -- NumPy ---------------------------------------------------------------------------------------
def spline(x):
    return BSpline.design_matrix(x[:, 0], KNOTS, 3).toarray()


def by_spline(theta, x):
    return spline(x) @ theta + np.exp(x[:, 1])


def two_outputs(theta, x):
    return np.stack([x @ theta, 2 * x[:, 0] * theta[0]], axis=1)


def slopes_of_two(x):
    return np.stack([x, 2 * x * np.array([1.0, 0.0, 0.0])], axis=1)


def identity(x):
    return x


@pytest.mark.parametrize(
    ("predict", "design", "p"),
    [(by_spline, spline, 5), (two_outputs, slopes_of_two, P), (lambda q, x: x @ q, identity, P)],
)
def test_a_jac_of_the_inputs_alone_says_that_the_model_is_linear(predict, design, p):
    theta = np.linspace(-1, 2, p)
    problem = numpy_problem(predict, theta, X, predict(theta, X) + 0.1, jac=design, weight_decay=1e-3)
    assert problem.linear
    assert_affine(problem)
    with_theta = numpy_problem(
        predict, theta, X, predict(theta, X) + 0.1, jac=lambda q, x: design(x), weight_decay=1e-3
    )
    assert not with_theta.linear
    v = np.random.default_rng(2).standard_normal((2, p))
    for curvature in ("hessian", "ggn"):
        assert np.allclose(problem.product(v, curvature), with_theta.product(v, curvature), rtol=1e-7)
    assert np.array_equal(problem.product(v, "hessian"), problem.product(v, "ggn"))
    assert np.array_equal(problem.gradients(problem.inputs(X[:2])), with_theta.gradients(with_theta.inputs(X[:2])))


def test_the_jacobian_of_a_linear_model_is_made_once():
    calls = []

    def design(x):
        calls.append(len(x))
        return x

    problem = numpy_problem(lambda q, x: x @ q, THETA, X, Y, jac=design)
    problem.jvp(np.eye(P))
    before = len(calls)
    moved = problem.at(THETA + 1).at(THETA - 1)
    assert np.array_equal(moved.jvp(np.eye(P))[:, :, 0], X.T)
    assert len(calls) == before


@pytest.mark.parametrize(
    ("predict", "jac"),
    [
        (lambda q, x: x @ np.abs(q), lambda x: x * np.sign(THETA)),
        (lambda q, x: x @ q + np.maximum(q[0] - 1.0, 0.0), lambda x: x),
        (lambda q, x: x @ q + np.where(np.abs(q[2]) > 2, np.nan, 0.0), lambda x: x),
        (lambda q, x: 1e3 * x @ np.sinh(1e-2 * q), lambda x: 10.0 * x * np.cosh(1e-2 * THETA)),
    ],
    ids=["abs", "hinge", "undefined", "nearly linear"],
)
def test_a_model_that_is_linear_only_near_theta_is_refused(predict, jac):
    with pytest.raises(vhat.InputError, match="which says that predict is linear in theta, and it is not"):
        numpy_problem(predict, THETA, X, Y, jac=jac)


def test_the_refusal_does_not_depend_on_units():
    """A hinge at three times theta is found in any unit of parameters, inputs and y; a line is never refused."""
    for unit in (1e-9, 1.0, 1e9):
        for scale in (1e-6, 1.0, 1e6):
            theta, x = THETA * unit / scale, X * scale
            numpy_problem(lambda q, x: x @ q, theta, x, Y * unit, jac=identity)
            with pytest.raises(vhat.InputError, match="linear in theta"):
                numpy_problem(
                    lambda q, x, edge=2 * unit / scale: x @ q + scale * np.maximum(q[0] - edge, 0),  # noqa: B023
                    theta,
                    x,
                    Y * unit,
                    jac=identity,
                )


def test_a_wrong_or_superfluous_derivative_of_a_linear_model_is_refused():
    with pytest.raises(vhat.InputError, match="jac"):
        numpy_problem(lambda q, x: x @ q, THETA, X, Y, jac=lambda x: 2 * x)
    with pytest.raises(vhat.InputError, match=r"jac\(X\) returned shape \(5, 2\)"):
        numpy_problem(lambda q, x: x @ q, THETA, X, Y, jac=lambda x: x[:, :2])
    with pytest.raises(vhat.InputError, match="leave hess out"):
        numpy_problem(lambda q, x: x @ q, THETA, X, Y, jac=identity, hess=lambda q, x: np.zeros((N, P, P)))


class Callable:
    def __call__(self, x):
        return x


def test_only_a_function_that_takes_one_argument_and_no_second_counts_as_one_of_the_inputs_alone():
    def linear(jac):
        return numpy_problem(lambda q, x: x @ q, THETA, X, Y, jac=jac).linear

    def both(theta, x=X):
        return x

    def keywords(x, *, scale=1.0):
        return scale * x

    assert linear(identity)
    assert linear(Callable())
    assert linear(keywords)
    assert linear(partial(lambda scale, x: scale * x, 1.0))
    assert not linear(both)
    assert not linear(lambda *given: given[1])
    with pytest.raises(ValueError, match="no signature found"):
        inspect.signature(max)
    assert not takes_inputs_alone(max)


def test_a_curve_fit_has_no_jacobian_and_is_not_recognised():
    problem, _ = curve_fit_problem(lambda x, a, b: a + b * x, [0.0, 1.0], X[:, 0], Y)
    assert not problem.linear


# -- what keeps it -------------------------------------------------------------------------------
def every_frontend():
    module = nn.Linear(P, 1).double()
    return {
        "jax": jax_problem(lambda q, x: x @ q, THETA, X, Y, weight_decay=0.1),
        "torch": torch_problem(module, torch.tensor(X), torch.tensor(Y[:, None]), weight_decay=0.1),
        "numpy": numpy_problem(lambda q, x: x @ q, THETA, X, Y, jac=identity, weight_decay=0.1),
    }


@pytest.mark.parametrize("framework", ["jax", "torch", "numpy"])
def test_the_property_outlives_every_way_of_moving_a_problem(framework):
    problem = every_frontend()[framework]
    index = np.array([0, 3, 5])
    with problem.scope():
        moved = [
            problem.at(problem.theta),
            problem.with_targets(problem.targets + 1),
            problem.with_decay(problem.decay),
            problem.rows(index),
            copy.copy(problem),
            copy.deepcopy(problem),
            replace(problem, memory=problem.memory),
        ]
    assert all(each.linear for each in moved)


@pytest.mark.parametrize("framework", ["jax", "torch", "numpy"])
def test_the_property_does_not_depend_on_units_of_inputs_and_responses(framework):
    unit = np.full(P, 10.0)
    scaling = Scaling(np.arange(P), np.ones(P), unit, np.array([3.0]), np.array([7.0]))
    problem = every_frontend()[framework]
    standardised = replace(problem, X=X * unit + 1, targets=problem.targets * 7 + 3, scaling=scaling)
    assert standardised.linear
    assert_affine(standardised)


def dot(params, x):
    return x @ params


def tanh_dot(params, x):
    return jnp.tanh(x @ params)


def test_the_property_outlives_a_pickle():
    module = nn.Sequential(backbone(), nn.Linear(6, 1)).double().eval()
    problems = [
        jax_problem(dot, THETA, X, Y, weight_decay=0.1),
        numpy_problem(dot, THETA, X, Y, jac=identity, weight_decay=0.1),
        torch_problem(module, torch.tensor(X), torch.tensor(Y[:, None]), weight_decay=0.1),
    ]
    assert all(pickle.loads(pickle.dumps(problem)).linear for problem in problems)
    assert not pickle.loads(pickle.dumps(jax_problem(tanh_dot, THETA, X, Y, weight_decay=0.1))).linear


def test_the_property_outlives_a_saved_file(tmp_path):
    module = nn.Linear(P, 1).double()
    given = {
        "jax": (vhat.from_jax(dot, THETA, X, Y, weight_decay=0.1), dot),
        "numpy": (vhat.from_numpy(dot, THETA, X, Y, jac=identity, weight_decay=0.1), (dot, identity)),
        "torch": (vhat.from_torch(module, torch.tensor(X), torch.tensor(Y[:, None]), weight_decay=0.1), module),
    }
    for name, (fitted, model) in given.items():
        fitted.polish().save(tmp_path / name)
        assert vhat.load(tmp_path / name, model=model).problem.linear


@pytest.mark.parametrize("framework", ["jax", "torch", "numpy"])
def test_only_the_named_square_loss_counts_as_one(framework):
    problem = every_frontend()[framework]
    assert problem.loss_derivatives.square
    build = {
        "jax": lambda loss: jax_problem(dot, THETA, X, Y, weight_decay=0.1, loss=loss),
        "numpy": lambda loss: numpy_problem(dot, THETA, X, Y, loss=loss),
        "torch": lambda loss: torch_problem(
            nn.Linear(P, 1).double(), torch.tensor(X), torch.tensor(Y[:, None]), weight_decay=0.1, loss=loss
        ),
    }[framework]
    assert build("mse").loss_derivatives.square
    assert not build(lambda f, y: 0.5 * ((f - y) ** 2).sum()).loss_derivatives.square
