"""Bad input gets a typed error in a sentence with the value and the remedy, loses nothing, and is never a number."""

from __future__ import annotations

import math
import re
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import vhat

N = 24
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2))
Y = X @ [1.0, -2.0] + 0.3 * RNG.standard_normal(N)
LAM = 0.1
POINTS = X[:3] + 0.1
THETA = np.linalg.solve(X.T @ X / N + LAM * np.eye(2), X.T @ Y / N)


def half_width(Z, y, lam, x, delta=0.05):
    """Student's interval of a ridge regression, its noise that of ordinary least squares, in closed form."""
    n, p = Z.shape
    rows = x @ np.linalg.solve(Z.T @ Z / n + lam * np.eye(p), Z.T) / n
    residual = y - Z @ np.linalg.lstsq(Z, y, rcond=None)[0]
    sigma2 = residual @ residual / (n - p)
    return stats.t.ppf(1 - delta / 2, n - p) * np.sqrt(sigma2 * np.sum(rows**2, axis=1))


def smoothed_half_width(Z, y, lam, x, delta=0.05):
    """The same with the noise of the penalised fit's own residuals, ``|r|^2 / |I - S|_F^2``."""
    n, p = Z.shape
    inverse = np.linalg.inv(Z.T @ Z / n + lam * np.eye(p))
    rows = x @ inverse @ Z.T / n
    S = Z @ inverse @ Z.T / n
    df = np.linalg.norm(np.eye(n) - S) ** 2
    sigma2 = np.sum((y - S @ y) ** 2) / df
    return stats.t.ppf(1 - delta / 2, df) * np.sqrt(sigma2 * np.sum(rows**2, axis=1))


# -- three doors to one linear model ---------------------------------------------------------------
def linear(q, Z):
    return Z @ q


class Linear(torch.nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(np.asarray(weight, dtype=np.float64)))

    def forward(self, Z):
        return Z @ self.weight


def from_jax(theta=THETA, X=X, y=Y, weight_decay=LAM, **options):
    return vhat.from_jax(linear, theta, X, y, weight_decay=weight_decay, **options)


def from_numpy(theta=THETA, X=X, y=Y, weight_decay=LAM, **options):
    return vhat.from_numpy(linear, theta, X, y, **{"jac": lambda Z: Z, "weight_decay": weight_decay} | options)


def from_torch(theta=THETA, X=X, y=Y, weight_decay=LAM, **options):
    return vhat.from_torch(Linear(theta), X, y, weight_decay=weight_decay, **options)


DOORS = {"jax": from_jax, "numpy": from_numpy, "torch": from_torch}


@pytest.fixture(params=list(DOORS))
def door(request):
    return DOORS[request.param]


@pytest.fixture(scope="module", params=list(DOORS))
def fitted(request):
    return DOORS[request.param]()


def named(value):
    """A short name of a case: what was changed, and not its numbers."""
    return "+".join(map(str, value)) if isinstance(value, dict) else value if isinstance(value, str) else None


@contextmanager
def refused(words, error=vhat.InputError, fitted=None):
    """Expect the error; then JAX's precision flag is as it was, and the fitted model gives the numbers it gave."""
    flag = jax.config.jax_enable_x64
    before = None if fitted is None else fitted.interval(POINTS)
    with pytest.raises(error, match=words) as caught:
        yield
    assert isinstance(caught.value, vhat.VhatError)
    assert len(str(caught.value).split()) >= 3
    assert jax.config.jax_enable_x64 == flag
    if fitted is not None:
        after = fitted.interval(POINTS)
        np.testing.assert_array_equal(before.lower, after.lower)
        np.testing.assert_array_equal(before.upper, after.upper)


def spoiled(array, value, rows):
    array = np.array(array, dtype=np.result_type(array, type(value)))
    array[rows] = value
    return array


def test_the_three_doors_give_the_closed_form(fitted):
    np.testing.assert_allclose(fitted.interval(POINTS).half_width, half_width(X, Y, LAM, POINTS), rtol=1e-9)


# -- training data ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"y": Y[:, None]}, r"y has shape \(24, 1\) but the model predicts shape \(24,\)\. Give y\[:, 0\]"),
        ({"y": Y[:-1]}, r"shape \(23,\).*X has 24 rows and y has 23"),
        ({"y": 1.0}, r"y has shape \(\)"),
        ({"y": []}, "X has 24 rows and y has 0"),
        ({"y": np.stack([Y, Y], axis=1)}, r"y has shape \(24, 2\)"),
        ({"X": X[:0], "y": Y[:0]}, r"(is empty|no rows).*at least one"),
        ({"X": spoiled(X, np.nan, [3, 5])}, "X has NaN or infinite values in rows 3, 5"),
        ({"X": spoiled(X, -np.inf, [0])}, "X has NaN or infinite values in row 0"),
        ({"y": spoiled(Y, np.inf, [7])}, "y has NaN or infinite values in row 7"),
        ({"y": spoiled(Y, np.nan, range(12))}, "rows 0, 1, 2, 3, 4, 5, 6, 7 and 4 more"),
        ({"y": Y.astype(str)}, "y has dtype <U32; give numbers"),
        ({"y": Y.astype(object)}, "y has dtype object; give numbers"),
        ({"y": Y + 0j}, "y is complex; give real numbers"),
        ({"y": np.arange(N).astype("datetime64[D]")}, r"y has dtype datetime64\[D\]"),
        ({"y": np.arange(N).astype("timedelta64[D]")}, r"y has dtype timedelta64\[D\]"),
        ({"sample_weight": np.ones(3)}, r"sample_weight has shape \(3,\); there are 24 rows"),
        ({"sample_weight": 1.0}, r"sample_weight has shape \(\)"),
        ({"sample_weight": -np.ones(N)}, r"not negative; found -1\.0"),
        ({"sample_weight": np.full(N, np.nan)}, "found nan"),
        ({"sample_weight": np.zeros(N)}, "no row is left"),
        ({"sample_weight": ["a"] * N}, "sample_weight has dtype <U1"),
        ({"sample_weight": np.ones(N) + 0j}, "sample_weight is complex"),
        ({"weight_decay": -1.0}, r"not negative; found -1\.0"),
        ({"weight_decay": math.nan}, "found nan"),
        ({"weight_decay": math.inf}, "found inf"),
        ({"weight_decay": "a"}, "weight_decay"),
        ({"weight_decay": np.ones(3)}, r"weight_decay.*\(3,\)"),
        ({"weight_decay": {"nope": 1.0}}, "weight_decay"),
        ({"loss": "l2"}, "loss='l2' is not known. Use one of 'half_mse', 'mse'"),
        ({"loss": None}, "loss=None is not known"),
        ({"memory": 0}, "memory=0 is not a positive number of bytes, such as 2e9"),
        ({"memory": math.inf}, "memory=inf"),
        ({"memory": "1GB"}, "memory='1GB'"),
    ],
    ids=named,
)
def test_unusable_training_data_and_options_are_refused(door, change, words):
    with refused(words):
        door(**change)


def test_row_of_responses_against_a_column_of_predictions_is_refused():
    words = r"y has shape \(24,\) but the model predicts shape \(24, 1\)\. Give y\[:, None\].*n x n"
    for make in (from_jax, from_torch):
        with refused(words):
            make(theta=THETA[:, None])
    with refused(words):
        vhat.from_numpy(lambda q, Z: (Z @ q)[:, None], THETA, X, Y)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_parameters_that_are_not_finite_are_refused(door, bad):
    with refused("NaN or infinite", (vhat.InputError, vhat.ModelError)):
        door(theta=np.array([1.0, bad]))


def test_complex_parameters_are_refused():
    for make in (from_jax, from_numpy):
        with refused("complex"):
            make(theta=THETA + 0j)


def test_masked_data_are_refused_with_their_rows(door):
    def holed(array):
        mask = np.zeros(np.shape(array), dtype=bool)
        mask[1] = True
        return np.ma.masked_array(array, mask=mask)

    for name, array in {"X": X, "y": Y, "sample_weight": np.ones(N)}.items():
        with refused(f"{name} is masked in row 1"):
            door(**{name: holed(array)})
    with refused(r"X(\[1\])? is masked in row"):
        door(X=list(holed(X)))
    fitted = door()
    with refused("x is masked in row 1"):
        fitted.interval(holed(POINTS))
    with refused("noise is masked in row 1"):
        fitted.interval(POINTS, noise=holed(np.ones(N)))
    whole = np.ma.masked_array(Y, mask=np.zeros(N, dtype=bool))
    np.testing.assert_array_equal(door(y=whole).interval(POINTS).upper, fitted.interval(POINTS).upper)


def test_masked_parameters_are_refused():
    for make in (from_jax, from_numpy):
        with refused("is masked in row 0"):
            make(theta=np.ma.masked_array(THETA, mask=[True, False]))


def test_complex_inputs_are_refused():
    for make in (from_jax, from_torch):
        with refused("X is complex; give real numbers"):
            make(X=X + 0j)
        with refused("x is complex; give real numbers"):
            make().interval(POINTS + 0j)


def test_complex_decay_is_refused(door):
    with refused("weight_decay is complex"):
        door(weight_decay=0.1 + 0j)


def test_ragged_lists_are_refused(door):
    for name in ("X", "y"):
        with refused(f"{name} (cannot be read as one array|is not an array).*inhomogeneous"):
            door(**{name: [[1.0, 2.0], [3.0]]})
    with refused("x (cannot be read as one array|is not an array)"):
        door().interval([[1.0, 2.0], [3.0]])


def test_inputs_without_an_array_are_refused():
    for nothing in (None, (), {}):
        with refused("X holds no array"):
            from_jax(X=nothing)


def test_columns_of_data_frames_are_matched_by_name(door):
    frame, points = pd.DataFrame(X, columns=["a", "b"]), pd.DataFrame(POINTS, columns=["a", "b"])
    fitted = door(X=frame)
    expected = fitted.interval(points)
    np.testing.assert_allclose(expected.half_width, half_width(X, Y, LAM, POINTS), rtol=1e-9)
    turned = fitted.interval(points[["b", "a"]])
    np.testing.assert_array_equal(turned.center, expected.center)
    np.testing.assert_array_equal(turned.half_width, expected.half_width)
    with refused(r"x lacks the columns \['b'\] of the training data. Give the columns \['a', 'b'\]"):
        fitted.interval(points.rename(columns={"b": "c"}))
    with refused(r"x has the columns \['c'\], which the training data have not"):
        fitted.interval(points.assign(c=1.0))
    with refused(r"x has the columns \['a'\] more than once"):
        fitted.interval(points[["b", "a", "a"]])


def test_columns_of_data_frames_among_several_inputs_are_matched_by_name():
    frame, points = pd.DataFrame(X, columns=["a", "b"]), pd.DataFrame(POINTS, columns=["a", "b"])
    fitted = vhat.from_jax(lambda q, Z: Z["left"] @ q, THETA, {"left": frame}, Y, weight_decay=LAM)
    turned = fitted.interval({"left": points[["b", "a"]]})
    np.testing.assert_allclose(turned.half_width, half_width(X, Y, LAM, POINTS), rtol=1e-9)


@pytest.mark.parametrize("kind", [str, object])
def test_inputs_that_are_not_numbers_are_refused(door, kind):
    with refused("numbers|predict failed", (vhat.InputError, vhat.ModelError)):
        door(X=X.astype(kind))


@pytest.mark.parametrize("decay", [{"w": 0.1, "b": 0.1, "c": 0.1}, [0.1, 0.1], {"w": [0.1], "b": 0.1}])
def test_decay_of_another_structure_than_the_parameters_is_refused(decay):
    params = {"w": THETA, "b": 0.0}
    with refused("weight_decay does not match params. Give one number, or the same structure"):
        vhat.from_jax(lambda q, Z: Z @ q["w"] + q["b"], params, X, Y, weight_decay=decay)


# -- models ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("predict", "words"),
    [
        (lambda q, Z: (Z @ q, Z @ q), r"predict returned a tuple with the parts 0 .*such as output=0\.$"),
        (lambda q, Z: {"y": Z @ q}, "predict returned a dict with the keys .*output="),
        (lambda q, Z: None, "predict returned None; it must return the prediction"),
        (lambda q, Z: jnp.sum(Z @ q), r"returned shape \(\) for 24 rows; it must return \(24,\)"),
        (lambda q, Z: (Z @ q)[:, None, None], r"returned shape \(24, 1, 1\)"),
        (lambda q, Z: (Z @ q)[:-1], r"returned shape \(23,\) for 24 rows"),
        (lambda q, Z: jnp.log(Z @ q), r"prediction on X has NaN or infinite values in rows 2, 3, 5"),
        (lambda q, Z: Z @ q + np.nan, "prediction on X has NaN or infinite values in rows 0, 1"),
        (lambda q, Z: Z @ q + 1 / 0, "division by zero"),
        (lambda q, Z: np.asarray(Z) @ np.asarray(q), "write it with jax.numpy"),
        (lambda q, Z: Z @ q if q[0] > 0 else -Z @ q, "tracing predict"),
        (lambda q: q, "takes 1 positional argument"),
        (lambda q, Z: Z @ q / jnp.max(jnp.abs(Z)), "depends on the other rows of the call"),
        (lambda q, Z: Z @ q - jnp.mean(Z @ q), "depends on the other rows of the call"),
        (lambda q, Z: Z @ q + RNG.normal(), "two evaluations of the model on the same rows differ"),
        (lambda q, Z: jnp.sqrt(Z @ (q - q)) + Z @ q, "derivative of the loss is not finite"),
        (lambda q, Z: Z @ q + 1j, "returned dtype complex128.*must return real numbers"),
        (lambda q, Z: (Z @ q).astype(int), "returned dtype int64, which has no derivative"),
        (lambda q, Z: Z @ q > 0, "returned dtype bool, which has no derivative"),
        (lambda q, Z: jnp.round(Z @ q), "zero in every parameter"),
        (lambda q, Z: 1.0 * (Z @ q > 0), "zero in every parameter"),
        (lambda q, Z: jax.lax.stop_gradient(Z @ q), "zero in every parameter.*stop_gradient"),
        (lambda q, Z: Z @ q + jax.lax.stop_gradient(q[0] * Z[:, 0]), "not those of its predictions.*stop_gradient"),
        (lambda q, Z: Z @ (q + jax.lax.stop_gradient(jnp.round(q) - q)), "straight-through"),
    ],
)
def test_jax_models_that_cannot_be_used_are_refused(predict, words):
    with refused(words, vhat.ModelError):
        vhat.from_jax(predict, THETA, X, Y, weight_decay=LAM)


@pytest.mark.parametrize(
    ("predict", "theta"),
    [
        (lambda q, Z: jax.nn.relu(Z @ q[:2]) + q[2], np.zeros(3)),  # every row sits on the kink
        (lambda q, Z: q[0] * jax.nn.relu(-q[1] - Z[:, 0] ** 2) + q[2], np.ones(3)),  # a unit that has died
        (lambda q, Z: jnp.cos(q[0] * Z[:, 0]), np.zeros(1)),  # no slope at theta itself
        (lambda q, Z: jnp.sin(1e6 * q[0] * Z[:, 0]), np.ones(1)),
        (lambda q, Z: 1e3 * q[0] * jnp.exp(-1e4 * q[1] * Z[:, 0] ** 2), np.array([1e3, 1e-4])),
        (lambda q, Z: jax.nn.logsumexp(50 * q * Z, axis=1), THETA),  # stops the gradient of a maximum inside, rightly
        (lambda q, Z: Z.astype(jnp.float32) @ q.astype(jnp.float32), THETA),
    ],
)
def test_jax_models_with_true_derivatives_are_taken_however_odd(predict, theta):
    assert vhat.from_jax(predict, theta, X, Y, weight_decay=LAM).problem.p == len(theta)


@pytest.mark.parametrize(
    ("predict", "words"),
    [
        (lambda q, Z: (Z @ q, Z @ q), r"returned shape \(2, 24\) for 24 rows"),
        (lambda q, Z: None, "must return"),
        (lambda q, Z: np.sum(Z @ q), r"returned shape \(\)"),
        (lambda q, Z: Z @ q + 1 / 0, "ZeroDivisionError"),
        (lambda q, Z: Z @ q + 0j, "must return real numbers"),
        (lambda q, Z: (Z @ q).astype(int), "returned dtype int64, which has no derivative"),
        (lambda q, Z: Z @ q > 0, "returned dtype bool, which has no derivative"),
        (lambda q, Z: np.round(Z @ q), "zero in every parameter"),
        (lambda q, Z: Z[:, 0], "zero in every parameter"),
        (lambda q, Z: Z @ q + np.nan, "NaN or infinite values in rows 0, 1"),
        (lambda q, Z: Z @ q - np.mean(Z @ q), "depends on the other rows of the call"),
        (lambda q, Z: Z @ q + RNG.normal(), "two evaluations"),
        (lambda q, Z: np.abs(Z @ (q - THETA)) + Z @ q, "kink"),
    ],
)
def test_numpy_models_that_cannot_be_used_are_refused(predict, words):
    with refused(words, vhat.ModelError):
        vhat.from_numpy(predict, THETA, X, Y, weight_decay=LAM).interval(POINTS)


@pytest.mark.parametrize("predict", [None, 3, "predict"])
def test_model_that_is_no_function_is_refused(predict):
    for make in (vhat.from_jax, vhat.from_numpy):
        with refused("predict must be a function"):
            make(predict, THETA, X, Y, weight_decay=LAM)


@pytest.mark.parametrize("params", [None, "abc", {}, [1, 2], THETA.astype(object)])
def test_parameters_without_a_floating_point_number_are_refused(params):
    with refused("no floating-point array"):
        vhat.from_jax(linear, params, X, Y, weight_decay=LAM)


def test_loss_that_raises_is_refused(door):
    with refused("division by zero", (vhat.InputError, vhat.ModelError)):
        door(loss=lambda f, y: 1 / 0)


def test_loss_without_curvature_is_refused(door):
    with refused(r"no second derivative in any row.*log\(cosh\(f - y\)\)", vhat.ModelError):
        door(loss=lambda f, y: abs(f - y))


def test_loss_that_is_not_finite_is_refused_with_its_rows():
    rows = ", ".join(map(str, np.flatnonzero(X @ THETA < Y)[:8]))
    for make, log in ((from_jax, jnp.log), (from_torch, torch.log), (from_numpy, np.log)):
        with (
            refused(
                f"the loss (or its derivatives are not finite|has NaN or infinite values) in rows {rows}",
                vhat.ModelError,
            ),
            np.errstate(all="ignore"),
        ):
            make(loss=lambda f, y, log=log: log(f - y))


# -- the options of an interval ----------------------------------------------------------------------
@pytest.mark.parametrize("delta", [0, 1, -1, 2, math.nan, math.inf, True, np.float64(1.0)])
def test_delta_outside_zero_and_one_is_refused(fitted, delta):
    with refused(r"delta=.* is not between 0 and 1.*0\.05 asks for 95%", fitted=fitted):
        fitted.interval(POINTS, delta)
    with refused("delta=", fitted=fitted):
        fitted.functional(lambda q: 0.0, delta)


@pytest.mark.parametrize("delta", ["a", "0.05", None, [0.05], np.array([0.05, 0.1]), 0.05 + 0j, {}])
def test_delta_that_is_no_number_is_refused(fitted, delta):
    with refused("is not a number. Give the failure probability, such as 0.05", fitted=fitted):
        fitted.interval(POINTS, delta)


UNKNOWN = [
    ({"bound": "tigth"}, "bound='tigth' is not known. Use one of 'isoperimetric', 'tight'"),
    ({"bound": None}, "bound=None is not known"),
    ({"target": "truth"}, "target='truth' is not known. Use one of 'mean', 'observation'"),
    ({"curvature": "exact"}, "curvature='exact' is not known. Use one of 'auto', 'hessian', 'ggn'"),
    ({"curvature": None}, "curvature=None is not known"),
    ({"solver": "cg"}, r"solver='cg' is not known. Use 'auto', vhat.CG\(...\)"),
    ({"solver": vhat.CG}, "solver=<class .* is not known"),
    ({"solver": None}, "solver=None is not known"),
    ({"simultaneous": "bonferroni"}, "simultaneous='bonferroni' is not known. Use False, True"),
    ({"simultaneous": None}, "simultaneous=None is not known"),
    ({"simultaneous": 1}, "simultaneous=1 is not known. Use False, True"),
    ({"simultaneous": 0}, "simultaneous=0 is not known"),
    ({"simultaneous": ["union"]}, "is not known"),
    ({"seed": -1}, "seed=-1 is not a whole number of at least 0"),
    ({"seed": "a"}, "seed='a' is not a whole number"),
    ({"seed": -1, "bound": "asymptotic", "simultaneous": "sup-t"}, "seed=-1"),
    ({"simultaneous": "sup-t"}, "it goes with bound='asymptotic', not 'isoperimetric'"),
    ({"tail": "guessed"}, "tail='guessed' is not known"),
    ({"tail": (1.0, 0.0)}, r"tail=\(1.0, 0.0\) is not known"),
    ({"tail": vhat.Tail(1, 1), "bound": "asymptotic"}, "takes no tail"),
    ({"bound": "empirical"}, r"give tail=vhat.Tail\(v, c\)"),
    ({"bias": "auto"}, "bias='auto' is not known"),
    ({"bias": -1.0}, "bias must be 'plug-in', or a bound"),
    ({"bias": math.nan}, "bias must be"),
    ({"bias": ["a"]}, "bias has dtype <U1; give numbers"),
    ({"bias": {}}, "bias={} is not a number or an array of numbers"),
    ({"bias": 1j}, "bias is complex"),
    ({"bias": np.ones(7)}, r"bias has shape \(7,\); the interval has shape \(3,\)"),
    ({"noise": 0.0}, r"noise must be positive and finite; found 0\.0. It is the standard deviation of y"),
    ({"noise": -0.1}, r"found -0\.1"),
    ({"noise": math.inf}, "found inf"),
    ({"noise": math.nan}, "found nan"),
    ({"noise": 1j}, "noise is complex"),
    ({"noise": spoiled(np.ones(N), -2.0, [4])}, r"found -2\.0"),
    ({"noise": "a"}, "noise='a' is not known. Give the standard deviation of y, one number or one a row"),
    ({"noise": np.ones(3)}, r"noise has shape \(3,\); give one number, shape \(24,\)"),
    ({"noise": np.ones((1, N))}, r"noise has shape \(1, 24\)"),
    ({"noise": []}, r"noise has shape \(0,\)"),
    ({"observation_noise": 0.1}, "observation_noise goes with target='observation'"),
    ({"target": "observation", "observation_noise": -1.0}, "observation_noise must be positive"),
    ({"target": "observation", "observation_noise": math.nan}, "observation_noise must be positive"),
    ({"target": "observation", "observation_noise": "a"}, "observation_noise='a' is not a number"),
    ({"target": "observation", "observation_noise": np.ones(5)}, r"shape \(5,\); the interval has shape \(3,\)"),
    ({"target": "observation", "noise": np.linspace(0.1, 0.2, N)}, "give observation_noise="),
]


@pytest.mark.parametrize(("options", "words"), UNKNOWN, ids=named)
def test_unknown_or_unusable_options_are_refused(fitted, options, words):
    with refused(words, fitted=fitted):
        fitted.interval(POINTS, **options)


def two_outputs():
    W = np.linalg.solve(X.T @ X / N + LAM * np.eye(2), X.T @ np.stack([Y, X[:, 0] - Y], axis=1) / N)
    return from_jax(theta=W, y=np.stack([Y, X[:, 0] - Y], axis=1))


@pytest.mark.parametrize("name", ["observation_noise", "bias"])
@pytest.mark.parametrize("points", [2, 3])
def test_one_axis_of_numbers_for_several_outputs_is_not_guessed_at(name, points):
    """(2,) could be one a point or one an output, and what a call means must not hang on how many points there are."""
    fitted, x = two_outputs(), POINTS[:points]
    options = {"target": "observation", "noise": 0.3} if name == "observation_noise" else {"noise": 0.3}
    for length in {points, 2}:
        with refused(rf"{name} has shape \({length},\).*Give shape \({points}, 1\), \(1, 2\) or \({points}, 2\)"):
            fitted.interval(x, **options, **{name: np.linspace(0.1, 0.2, length)})
    given = np.array([[0.1, 0.2]])
    each = [fitted.interval(x, **options, **{name: value}).half_width for value in given[0]]
    both = fitted.interval(x, **options, **{name: given}).half_width
    np.testing.assert_allclose(both, np.stack([each[0][:, 0], each[1][:, 1]], axis=1), rtol=1e-12)
    rows = np.linspace(0.1, 0.2, points)[:, None]
    alone = [fitted.interval(x[i : i + 1], **options, **{name: float(rows[i, 0])}).half_width for i in range(points)]
    np.testing.assert_allclose(
        fitted.interval(x, **options, **{name: rows}).half_width, np.concatenate(alone), rtol=1e-12
    )


def test_noise_written_out_row_by_row_counts_as_one_level():
    fitted = from_numpy()
    one, each = (fitted.interval(POINTS, target="observation", noise=noise) for noise in (0.3, np.full(N, 0.3)))
    np.testing.assert_allclose(each.half_width, one.half_width, rtol=1e-12)


def test_numpy_truth_value_is_a_truth_value():
    fitted = from_numpy()
    for value in (True, False):
        expected = fitted.interval(POINTS, simultaneous=value)
        found = fitted.interval(POINTS, simultaneous=np.bool_(value))
        np.testing.assert_array_equal(found.half_width, expected.half_width)


def test_parameters_without_influence_are_named_by_their_positions():
    with refused(r"1 of 2 parameters .*\(position 1 of the flat vector\)", vhat.NotPositiveDefinite):
        vhat.from_jax(lambda q, Z: Z[:, 0] * q[0], THETA, X, Y, weight_decay=0.0).interval(POINTS)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: vhat.CG(rtol=2.0), "rtol=2.0 is not between 0 and 1"),
        (lambda: vhat.CG(rtol=math.nan), "rtol=nan"),
        (lambda: vhat.CG(max_steps=0), "max_steps=0"),
        (lambda: vhat.CG(block=0), "block=0"),
        (lambda: vhat.CG(restarts=-1), "restarts=-1"),
        (lambda: vhat.Tail(-1, 0), "v=-1 must be finite and not negative"),
        (lambda: vhat.Tail("a", 0), "v='a' is not a number"),
        (lambda: vhat.Tail.relative(0.1, math.inf), "c=inf"),
    ],
)
def test_options_are_checked_where_they_are_made(make, words):
    with refused(words):
        make()


def test_other_methods_refuse_the_same_options(fitted):
    for call, words in (
        (lambda: fitted.weighted_norm(POINTS, curvature="exact"), "curvature='exact'"),
        (lambda: fitted.weighted_norm(POINTS, solver="dense"), "solver='dense'"),
        (lambda: fitted.plan(POINTS, solver="dense"), "solver='dense'"),
        (lambda: fitted.sensitivity(POINTS[0]), "one|x\\[None\\]"),
        (lambda: fitted.covariance(noise=-1.0), r"found -1\.0"),
        (lambda: fitted.predict(POINTS[:0]), "at least one"),
        (lambda: fitted.polish(gtol=-1.0), "gtol=-1.0 is not between 0 and 1"),
        (lambda: fitted.polish(max_steps=0), "max_steps=0"),
        (lambda: fitted.audit(curvature="exact"), "curvature='exact'"),
        (lambda: fitted.audit(noise=0.0), "noise must be positive"),
    ):
        with refused(words, fitted=fitted):
            call()


def test_interpolating_fit_without_a_noise_level_is_refused(door):
    q = np.linalg.solve(X[:2], Y[:2])
    fitted = door(theta=q, X=X[:2], y=Y[:2], weight_decay=1e-9)
    with refused(r"the fit interpolates: .* of their 2 degrees of freedom.*Give noise=", vhat.NoiseError):
        fitted.interval(POINTS)
    with refused("interpolates", vhat.NoiseError):
        fitted.functional(lambda q: q[0] if not isinstance(q, dict) else q["weight"][0])
    assert np.all(fitted.interval(POINTS, noise=0.3).half_width > 0)


# -- test points -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("x", "words"),
    [
        (X[:0], r"(is empty|no rows).*at least one"),
        (np.ones((3, 5)), r"shape \((3, )?5,?\)"),
        (np.ones((3, 2, 1)), r"shape \((2, )?2, 1\)|shape \(3, 2, 1\)"),
        (X[0], r"x\[None\]"),
        (spoiled(POINTS, np.nan, [1]), "x has NaN or infinite values in row 1"),
        (spoiled(POINTS, np.inf, [0, 2]), "x has NaN or infinite values in rows 0, 2"),
        (POINTS.astype(str), "x has dtype <U32"),
        (POINTS.astype(object), "x has dtype object"),
        (1.0, "x"),
        (None, "x"),
        ({"a": POINTS}, "x"),
        ((POINTS,), "x"),
    ],
    ids=named,
)
def test_unusable_test_points_are_refused(fitted, x, words):
    for call in (fitted.interval, fitted.weighted_norm, fitted.sensitivity, fitted.predict):
        with refused(words, fitted=fitted):
            call(x)


def test_prediction_that_is_not_finite_at_a_test_point_is_refused_with_its_row():
    """Finite where it was trained, and NaN beyond, with finite derivatives."""

    class Edged(Linear):
        def forward(self, Z):
            return Z @ self.weight + torch.where(Z[:, 0] < 0, torch.nan, 0.0)

    def edged(np_):
        return lambda q, Z: Z @ q + np_.where(Z[:, 0] < 0, np_.nan, 0.0)

    Z, x = np.abs(X), np.array([[1.0, 0.5], [-1.0, 0.5]])
    for fitted in (
        vhat.from_jax(edged(jnp), THETA, Z, Y, weight_decay=LAM),
        vhat.from_numpy(edged(np), THETA, Z, Y, weight_decay=LAM),
        vhat.from_torch(Edged(THETA), Z, Y, weight_decay=LAM),
    ):
        for call in (fitted.predict, fitted.interval):
            with refused("prediction at x has NaN or infinite values in row 1", vhat.ModelError):
                call(x)


def test_test_points_of_another_kind_than_integer_codes_are_refused():
    table = np.array([0.3, -0.2, 0.5])
    codes = np.arange(N) % 3
    for X_, x in ((codes, [0.5]), (codes, [True, False])):
        fitted = vhat.from_jax(lambda q, Z: q[Z], table, X_, Y, weight_decay=LAM)
        with refused("x has dtype .*; the training inputs have int64"):
            fitted.interval(x)


# -- functionals -------------------------------------------------------------------------------------
def entries(q):
    return q["weight"] if isinstance(q, dict) else q


@pytest.mark.parametrize(
    ("q", "words"),
    [
        (lambda q: entries(q)[:, None] * entries(q), r"returned shape \(2, 2\)"),
        (lambda q: "a", "functional|string"),
        (lambda q: 1.0, "gradient of exactly zero|the functional returned float"),
        (lambda q: entries(q)[:0], r"the functional returned shape \(0,\); return a scalar or one axis"),
        (lambda q: entries(q)[0] + 1 / 0, "functional.*division by zero"),
        (lambda q: entries(q)[0] * (1 + 1j), "functional"),
        (lambda q: None, "functional"),
        (lambda q: q["nope"], "functional"),
        (3, "functional"),
    ],
)
def test_unusable_functionals_are_refused(fitted, q, words):
    with refused(words, vhat.VhatError, fitted=fitted):
        fitted.functional(q)


def rounded(value):
    return torch.round(value) if isinstance(value, torch.Tensor) else jnp.round(value)


@pytest.mark.parametrize("q", [lambda q: 0 * entries(q)[0] + 1.0, lambda q: rounded(entries(q)[0])])
def test_functional_that_no_parameter_moves_is_refused(fitted, q):
    words = "gradient of exactly zero: it does not depend on the parameters, or is not differentiable"
    with refused(words, fitted=fitted):
        fitted.functional(q)


def test_values_of_a_functional_that_no_parameter_moves_are_named(fitted):
    def q(params):
        first, second = entries(params)
        if isinstance(first, torch.Tensor):
            return torch.stack([first, torch.round(second), first + second])
        return jnp.stack([first, jnp.round(second), first + second])

    with refused("gradient of exactly zero: value 1 does not depend", fitted=fitted):
        fitted.functional(q)


def test_functional_that_changes_from_call_to_call_is_refused(fitted):
    with refused("two evaluations of the functional differ", vhat.ModelError, fitted=fitted):
        fitted.functional(lambda q: entries(q)[0] + RNG.normal())


def test_random_functional_of_a_module_leaves_the_random_state_alone():
    fitted, before = from_torch(), torch.get_rng_state()
    with refused("two evaluations of the functional differ", vhat.ModelError):
        fitted.functional(lambda q: q["weight"][0] + torch.randn((), dtype=torch.float64))
    assert torch.equal(torch.get_rng_state(), before)


def test_functional_that_is_not_finite_is_refused(fitted):
    with refused("functional", vhat.VhatError, fitted=fitted):
        fitted.functional(lambda q: entries(q)[0] / (entries(q)[1] - entries(q)[1]) if isinstance(q, dict) else np.inf)


def test_functional_in_numpy_of_a_jax_model_says_how_to_write_it():
    with refused("write it with jax.numpy", vhat.ModelError):
        from_jax().functional(lambda q: np.log(np.asarray(q)[0]))


@pytest.mark.parametrize("solver", ["exact", "probes"])
def test_noise_is_not_estimated_from_rows_without_weight(door, solver, monkeypatch):
    """Their responses are garbage: they stand neither in the residuals nor in their degrees of freedom."""
    if solver == "probes":
        monkeypatch.setattr("vhat.variance.noise._EXACT_FLOPS", 0)
    weight = np.where(np.arange(N) < 8, 0.0, 1.0)
    kept = weight > 0
    lam = LAM * N / kept.sum()
    q = np.linalg.solve(X[kept].T @ X[kept] / kept.sum() + lam * np.eye(2), X[kept].T @ Y[kept] / kept.sum())
    weighted = door(theta=q, sample_weight=weight, y=np.where(kept, Y, 1e6)).interval(POINTS)
    closed_form = smoothed_half_width if solver == "probes" else half_width
    np.testing.assert_allclose(weighted.half_width, closed_form(X[kept], Y[kept], lam, POINTS), rtol=1e-9)
    dropped = door(theta=q, X=X[kept], y=Y[kept], weight_decay=lam).interval(POINTS)
    np.testing.assert_allclose(weighted.df, dropped.df, rtol=1e-9)


def test_interpolation_is_judged_by_the_rows_that_have_weight():
    weight = np.where(np.arange(N) < 2, 1.0, 0.0)
    fitted = from_numpy(theta=np.linalg.solve(X[:2], Y[:2]), sample_weight=weight, weight_decay=1e-9)
    with refused("the fit interpolates: .* of their 2 degrees of freedom", vhat.NoiseError):
        fitted.interval(POINTS)


# -- what looks odd but is right: against the closed form --------------------------------------------
def padded(array):
    """The same numbers, every second of a larger array, backwards and back: no contiguous memory."""
    wide = np.zeros((2 * len(array), 3), order="F")
    wide[1::2, ::2] = array
    return wide[1::2, ::2][::-1][::-1]


@pytest.mark.parametrize(
    ("data", "points"),
    [
        ({"X": X.tolist(), "y": Y.tolist()}, POINTS.tolist()),
        ({"X": padded(X), "y": Y[::-1][::-1]}, padded(POINTS)),
        ({"X": np.asfortranarray(X)}, np.asfortranarray(POINTS)),
        ({"y": pd.Series(Y, index=np.arange(N)[::-1])}, POINTS),
        ({"y": pd.Series(Y).astype("Float64")}, POINTS),
        ({"X": pd.DataFrame(X), "y": pd.Series(Y)}, pd.DataFrame(POINTS)),
        ({"y": torch.tensor(Y)}, torch.tensor(POINTS)),
        ({"X": X.astype(np.longdouble), "y": Y.astype(np.longdouble)}, POINTS.astype(np.longdouble)),
        ({"weight_decay": np.float32(LAM)}, POINTS),
        ({"sample_weight": [1] * N}, POINTS),
        ({"sample_weight": np.ones(N, dtype=bool)}, POINTS),
    ],
    ids=[
        "lists",
        "strides",
        "fortran",
        "series",
        "nullable",
        "frames",
        "tensors",
        "longdouble",
        "lam",
        "int w",
        "bool w",
    ],
)
def test_every_container_gives_the_same_interval(door, data, points):
    band = door(**data).interval(points)
    rtol = 1e-6 if "weight_decay" in data else 1e-9
    np.testing.assert_allclose(band.half_width, half_width(X, Y, LAM, POINTS), rtol=rtol)
    np.testing.assert_allclose(band.center, POINTS @ THETA, rtol=1e-9)


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint16, np.int64, np.float16, np.float32])
def test_responses_of_any_numeric_type_count_as_their_values(door, dtype):
    y = np.abs(3 * Y).astype(dtype)
    q = np.linalg.solve(X.T @ X / N + LAM * np.eye(2), X.T @ y.astype(float) / N)
    band = door(theta=q, y=y).interval(POINTS)
    np.testing.assert_allclose(band.half_width, half_width(X, y.astype(float), LAM, POINTS), rtol=1e-9)


@pytest.mark.parametrize("dtype", [bool, np.int8, np.int64, np.uint8, np.float16, np.float32])
def test_test_points_of_any_numeric_type_count_as_their_values(fitted, dtype):
    x = np.array([[0, 1], [3, 2]]).astype(dtype)
    expected = half_width(X, Y, LAM, x.astype(float))
    np.testing.assert_allclose(fitted.interval(x).half_width, expected, rtol=1e-9)
    np.testing.assert_allclose(fitted.interval(x.tolist()).half_width, expected, rtol=1e-9)


def test_integer_training_inputs_count_as_numbers():
    Z = np.round(3 * X).astype(int)
    q = np.linalg.solve(Z.T @ Z / N + LAM * np.eye(2), Z.T @ Y / N)
    expected = half_width(Z.astype(float), Y, LAM, np.array([[1.0, -4.0]]))
    for make in (from_jax, from_numpy):
        np.testing.assert_allclose(make(theta=q, X=Z).interval([[1, -4]]).half_width, expected, rtol=1e-9)
    with refused("mixes dtypes.*numbers as floats", vhat.ModelError):
        from_torch(theta=q, X=Z)


def test_half_precision_parameters_are_used_as_they_are():
    q = THETA.astype(np.float16)
    fitted = from_jax(theta=q)
    np.testing.assert_array_equal(fitted.params, q.astype(np.float64))
    band = fitted.interval(POINTS, noise=0.3)
    np.testing.assert_allclose(band.weighted_norm, from_numpy().interval(POINTS).weighted_norm, rtol=1e-9)


def test_python_numbers_and_empty_leaves_among_the_parameters_are_fine():
    params = {"a": float(THETA[0]), "b": np.float64(THETA[1]), "none": np.zeros((0, 3)), "degree": 1}
    with pytest.warns(vhat.FixedParameterWarning, match=r"params\['degree'\] = 1"):
        fitted = vhat.from_jax(
            lambda q, Z: q["a"] * Z[:, 0] ** q["degree"] + q["b"] * Z[:, 1], params, X, Y, weight_decay=LAM
        )
    assert fitted.problem.p == 2
    np.testing.assert_allclose(fitted.interval(POINTS).half_width, half_width(X, Y, LAM, POINTS), rtol=1e-9)


@pytest.mark.parametrize("unit", [1e9, 1e-9])
def test_very_large_and_very_small_units_change_nothing(door, unit):
    """y -> a y with theta -> a theta; X -> a X with theta -> theta / a and lam -> a^2 lam."""
    expected = half_width(X, Y, LAM, POINTS)
    band = door(theta=unit * THETA, y=unit * Y).interval(POINTS)
    np.testing.assert_allclose(band.half_width, unit * expected, rtol=1e-9)
    band = door(theta=THETA / unit, X=unit * X, weight_decay=unit**2 * LAM).interval(unit * POINTS)
    np.testing.assert_allclose(band.half_width, expected, rtol=1e-9)


def test_rows_of_no_weight_are_rows_left_out(door):
    """With the noise given; n still counts them, so lam is to be read against the rows that are left."""
    weight = np.where(np.arange(N) < 8, 0.0, 1.0)
    kept = weight > 0
    lam = LAM * N / kept.sum()
    q = np.linalg.solve(X[kept].T @ X[kept] / kept.sum() + lam * np.eye(2), X[kept].T @ Y[kept] / kept.sum())
    weighted = door(theta=q, sample_weight=weight).interval(POINTS, noise=0.3)
    dropped = door(theta=q, X=X[kept], y=Y[kept], weight_decay=lam).interval(POINTS, noise=0.3)
    np.testing.assert_allclose(weighted.half_width, dropped.half_width, rtol=1e-9)


def test_a_repeated_point_gets_the_interval_it_has_alone(fitted):
    alone = fitted.interval(POINTS[:1])
    together = fitted.interval(POINTS[[0, 1, 0, 0]])
    np.testing.assert_allclose(together.half_width[[0, 2, 3]], np.repeat(alone.half_width, 3), rtol=1e-12)


def test_caller_may_change_its_arrays_afterwards(door):
    Z, y, q = X.copy(), Y.copy(), THETA.copy()
    fitted = door(theta=q, X=Z, y=y)
    Z[:], y[:], q[:] = 7.0, 7.0, 7.0
    np.testing.assert_allclose(fitted.interval(POINTS).half_width, half_width(X, Y, LAM, POINTS), rtol=1e-9)


def test_results_can_be_changed_without_changing_the_model(fitted):
    before = fitted.interval(POINTS).half_width.copy()
    band = fitted.interval(POINTS)
    for name in ("center", "lower", "upper", "half_width", "weighted_norm"):
        getattr(band, name)[...] = 7.0
    np.testing.assert_array_equal(fitted.interval(POINTS).half_width, before)


def test_precision_flag_of_jax_is_left_alone_whichever_way_it_is_set():
    for flag in (True, False):
        with jax.enable_x64(flag):
            fitted = from_jax()
            np.testing.assert_allclose(fitted.interval(POINTS).half_width, half_width(X, Y, LAM, POINTS), rtol=1e-9)
            with pytest.raises(vhat.InputError, match=re.escape("delta=2")):
                fitted.interval(POINTS, 2)
            with pytest.raises(vhat.ModelError, match="division"):
                vhat.from_jax(lambda q, Z: Z @ q / (1 // 0), THETA, X, Y, weight_decay=LAM)
            assert jax.config.jax_enable_x64 is flag
