"""``NetworkRegressor`` behaves as scikit-learn expects, answers in the user's units, refuses bad tables in words."""

from __future__ import annotations

import copy
import functools
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import jax.numpy as jnp
import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import parametrize_with_checks

import vhat
from tests import oracle
from tests.report.cases import data_of

ROOT = Path(__file__).parents[2]
SMALL = {"hidden_layer_sizes": (4,), "weight_decay": 1e-2}


def table(n=60, seed=0):
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.uniform(-2, 2, n), rng.normal(50, 10, n), rng.integers(0, 3, n)])
    y = 200 + 30 * np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] - 4 * X[:, 2] + 3 * rng.normal(size=n)
    return X, y


X, Y = table()
NEW = table(7, seed=1)[0]
NAMES = ["depth", "age", "kind"]


@pytest.fixture(scope="module")
def network():
    return vhat.NetworkRegressor(**SMALL).fit(X, Y)


@pytest.fixture(scope="module")
def named():
    return vhat.NetworkRegressor(**SMALL).fit(pd.DataFrame(X, columns=NAMES), Y)


# -- scikit-learn ----------------------------------------------------------------------------------
@pytest.mark.core
@pytest.mark.filterwarnings("ignore::vhat.TableWarning")  # several checks have fewer rows than columns
@parametrize_with_checks([vhat.NetworkRegressor(**SMALL)])
def test_scikit_learn_check(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::vhat.VhatWarning")
@parametrize_with_checks([vhat.NetworkRegressor()])
def test_scikit_learn_check_with_the_defaults(estimator, check):
    """Every check of ``check_estimator``, one a test: the weight decay of each of its tables is chosen anew."""
    check(estimator)


def test_a_pipeline_a_grid_search_and_cross_validation_take_it():
    network = vhat.NetworkRegressor(hidden_layer_sizes=(), weight_decay=1e-4)
    chain = make_pipeline(PolynomialFeatures(2, include_bias=False), network)
    curved = X[:, 0] ** 2 + X[:, 0] * X[:, 2] + 0.1 * X[:, 1]  # linear in the polynomials: decay can only harm
    search = GridSearchCV(chain, {"networkregressor__weight_decay": [1e-4, 10.0]}, cv=3).fit(X, curved)
    assert search.best_params_ == {"networkregressor__weight_decay": 1e-4}
    assert cross_val_score(chain, X, curved, cv=3).min() > 0.99
    step = search.best_estimator_[-1]
    band = step.predict_interval(search.best_estimator_[:-1].transform(NEW), target="observation")
    np.testing.assert_array_equal(band.center, search.predict(NEW))


def test_joblib_carries_it_to_other_processes(network):
    found = joblib.Parallel(n_jobs=2)(joblib.delayed(network.predict)(NEW) for _ in range(2))
    np.testing.assert_allclose(found, [network.predict(NEW)] * 2, rtol=1e-13)


@pytest.mark.parametrize("twin", [lambda e: pickle.loads(pickle.dumps(e)), copy.deepcopy], ids=["pickle", "deepcopy"])
def test_a_copy_has_every_bit_of_the_original(network, twin):
    network.predict_interval(NEW)  # what has been worked out must not stand in the way
    again = twin(network)
    assert again.fitted_.problem.theta.dtype == np.float64
    np.testing.assert_array_equal(again.predict_interval(NEW).upper, network.predict_interval(NEW).upper)


def test_a_clone_is_not_fitted_and_keeps_the_options():
    network = vhat.NetworkRegressor((8, 4), activation="gelu", weight_decay=0.1, recipe="adam", random_state=3)
    assert clone(network).get_params() == network.get_params()
    assert not hasattr(clone(network), "fitted_")


# -- units -----------------------------------------------------------------------------------------
def in_the_model(network, points, y=Y, weights=None):
    """The same fit through ``from_jax``, the scaling written in the model function."""
    scaling, own = network.scaling_, network.fitted_.problem.autodiff.network

    def predict(params, x):
        return scaling.shift[0] + scaling.unit[0] * own(params, (x[:, scaling.kept] - scaling.center) / scaling.spread)

    lam = network.weight_decay_ * scaling.unit[0] ** 2  # of 1/(2n) sum (f - y)^2 in the user's units
    return vhat.from_jax(predict, network.fitted_.params, points, y, weight_decay=lam, sample_weight=weights)


@pytest.mark.parametrize(
    "options", [{}, {"target": "observation", "bound": "isoperimetric", "delta": 0.1}, {"bound": "asymptotic"}]
)
def test_intervals_equal_from_jax_with_the_scaling_in_the_model(network, options):
    found, expected = network.predict_interval(NEW, **options), in_the_model(network, X).interval(NEW, **options)
    for name in ("center", "lower", "upper", "half_width", "standard_error", "weighted_norm", "noise", "df"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9, err_msg=name)
    np.testing.assert_allclose(found.unsupported, expected.unsupported, atol=1e-9)
    assert found.guarantee == expected.guarantee
    assert "certified minimum" in found.guarantee


def test_everything_else_of_the_fitted_model_is_in_the_same_units(network):
    found, expected = network.fitted_, in_the_model(network, X)
    np.testing.assert_allclose(found.sensitivity(NEW), expected.sensitivity(NEW), rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(found.leave_one_out().residual, expected.leave_one_out().residual, rtol=1e-8)
    a, b = (each.calibrate("loo").interval(NEW, 0.1) for each in (found, expected))
    np.testing.assert_allclose(a.upper, b.upper, rtol=1e-9)
    np.testing.assert_allclose(found.covariance(), expected.covariance(), rtol=1e-6, atol=1e-12)
    a, b = (each.scale_weight_decay(0.5).polish().interval(NEW) for each in (found, expected))
    np.testing.assert_allclose(a.upper, b.upper, rtol=1e-9)
    assert list(found.acquire(NEW, 3).indices) == list(expected.acquire(NEW, 3).indices)
    assert str(found.audit()["smallest eigenvalue"]) == str(expected.audit()["smallest eigenvalue"])
    np.testing.assert_allclose(
        found.interval(NEW, solver=vhat.CG(rtol=1e-12)).upper,
        expected.interval(NEW, solver=vhat.Dense()).upper,
        rtol=1e-8,
    )
    np.testing.assert_allclose(
        found.interval(NEW, solver=vhat.Dual()).upper, expected.interval(NEW, solver=vhat.Dense()).upper, rtol=1e-8
    )


def test_the_weighted_norm_agrees_with_a_dense_hessian_of_standardised_data(network):
    """V has no unit: the oracle sees only standardised numbers, and a network written out here."""
    Z, t, points = (X - X.mean(0)) / X.std(0), (Y - Y.mean()) / Y.std(), (NEW - X.mean(0)) / X.std(0)

    def predict(params, z):
        first, last = params
        return (jnp.tanh(z @ first["w"] + first["b"]) @ last["w"] + last["b"])[:, 0]

    V = oracle.dense(predict, network.fitted_.params, Z, t, points, 1e-2)[0]
    np.testing.assert_allclose(network.fitted_.weighted_norm(NEW).value, V, rtol=1e-8)


@pytest.mark.parametrize(("a", "b"), [(1e9, 0.0), (1e-9, 0.0), (-3.0, 1e6), (1e150, 0.0), (1e-125, 0.0)])
def test_other_units_of_y_change_nothing_else(network, a, b):
    moved = vhat.NetworkRegressor(**SMALL).fit(X, a * Y + b)
    found, expected = moved.predict_interval(NEW), network.predict_interval(NEW)
    tolerance = 1e-7 * expected.half_width.min()  # of the offset, seven digits are left at the least
    np.testing.assert_allclose((found.center - b) / a, expected.center, rtol=1e-6)
    if a > 0:  # a network that is turned over need not end at the minimum turned over
        np.testing.assert_allclose(found.half_width / a, expected.half_width, rtol=1e-6, atol=tolerance)


def test_huge_scales_of_a_column_change_nothing(network):
    units = np.array([1e9, 1e-9, 1e200])
    moved = vhat.NetworkRegressor(**SMALL).fit(X * units, Y)
    np.testing.assert_allclose(
        moved.predict_interval(NEW * units).upper, network.predict_interval(NEW).upper, rtol=1e-6
    )


def test_two_outputs_equal_from_jax_with_a_loss_that_knows_their_units():
    both = np.column_stack([Y, 1e4 * np.cos(X[:, 0]) + X[:, 1]])
    network = vhat.NetworkRegressor(**SMALL).fit(X, both)
    scaling, own = network.scaling_, network.fitted_.problem.autodiff.network
    expected = vhat.from_jax(
        lambda p, x: scaling.shift + scaling.unit * own(p, (x - scaling.center) / scaling.spread),
        network.fitted_.params,
        X,
        both,
        weight_decay=1e-2,
        loss=lambda f, y: (((f - y) / scaling.unit) ** 2).sum() / 2,
    )
    assert network.predict(NEW).shape == (7, 2)
    np.testing.assert_allclose(network.predict_interval(NEW).upper, expected.interval(NEW).upper, rtol=1e-8)


# -- rows ------------------------------------------------------------------------------------------
def test_copies_of_a_row_weights_and_the_order_of_rows_are_one_and_the_same_fit():
    copied, order = np.repeat(np.arange(60), 1 + (np.arange(60) < 5)), np.random.default_rng(0).permutation(60)
    repeated = vhat.NetworkRegressor(**SMALL).fit(X[copied], Y[copied])
    weights = 1.0 + (np.arange(60) < 5)
    weighed = vhat.NetworkRegressor(**SMALL).fit(X[order], Y[order], sample_weight=7 * weights[order])
    np.testing.assert_allclose(repeated.predict(NEW), weighed.predict(NEW), rtol=1e-12)
    # what counts twice in the loss has been measured once: its noise does not average out
    half_width = weighed.predict_interval(NEW, noise="equal").half_width
    assert not np.allclose(repeated.predict_interval(NEW).half_width, half_width, rtol=1e-3)


def test_weighted_intervals_equal_from_jax():
    weights = np.linspace(0.5, 1.5, 60)
    network = vhat.NetworkRegressor(**SMALL).fit(X, Y, sample_weight=weights)
    for noise in ("equal", "weights"):
        expected = in_the_model(network, X, weights=weights).interval(NEW, noise=noise)
        np.testing.assert_allclose(network.predict_interval(NEW, noise=noise).upper, expected.upper, rtol=1e-8)


def test_rows_of_weight_zero_are_as_if_they_were_not_there():
    seen = np.arange(60) < 40
    without = vhat.NetworkRegressor(**SMALL).fit(X[seen], Y[seen])
    zero = vhat.NetworkRegressor(**SMALL).fit(X, Y, sample_weight=seen.astype(float))
    np.testing.assert_array_equal(zero.predict_interval(NEW).upper, without.predict_interval(NEW).upper)


# -- weight decay and recipes ------------------------------------------------------------------------
def test_auto_chooses_by_leave_one_out_and_does_not_depend_on_units():
    network = vhat.NetworkRegressor((3,)).fit(X, Y)
    assert network.weight_decay_ == network.selection_.weight_decay
    assert network.weight_decay_ in network.selection_.curve.weight_decay
    moved = vhat.NetworkRegressor((3,)).fit(X * [1e6, 1.0, 1e-3] + 7.0, 1e9 * Y)
    np.testing.assert_allclose(moved.weight_decay_, network.weight_decay_, rtol=1e-9)
    np.testing.assert_allclose(1e9 * network.predict(X), moved.predict(X * [1e6, 1.0, 1e-3] + 7.0), rtol=1e-4)


def test_a_table_that_says_nothing_is_told():
    with pytest.warns(vhat.SelectionWarning, match="the columns tell little about y"):
        network = vhat.NetworkRegressor((3,)).fit(X, np.random.default_rng(5).normal(size=60))
    assert np.ptp(network.predict(NEW)) < 0.3


def test_a_grid_of_your_own_is_chosen_from_and_saved(tmp_path):
    grid = [1e-1, 1e-2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vhat.SelectionWarning)  # one end of two is best
        network = vhat.NetworkRegressor((), weight_decay=grid).fit(X, Y)
        chosen = vhat.fit.choose_weight_decay(
            vhat.fit.Minimum(vhat.fit.Network((3, 1)), 1.0),
            (X - X.mean(0)) / X.std(0),
            (Y - Y.mean()) / Y.std(),
            grid=grid,
        )
    assert network.weight_decay_ == chosen.weight_decay
    assert list(network.selection_.curve.weight_decay) == sorted(grid)
    assert network.get_params()["weight_decay"] is grid
    network.save(tmp_path / "grid")
    assert vhat.NetworkRegressor.load(tmp_path / "grid").get_params()["weight_decay"] == grid
    with pytest.warns(
        vhat.TableWarning, match=r"a grid of weight_decay .* 9 different rows are too few .*: 0.1 is taken"
    ):
        assert vhat.NetworkRegressor((), weight_decay=np.array(grid)).fit(X[:9], Y[:9]).weight_decay_ == 0.1


def test_auto_that_ends_where_the_score_still_falls_names_a_grid_to_go_on_with():
    x = np.linspace(-3, 3, 60)[:, None]
    with pytest.warns(vhat.SelectionWarning, match=r"still falling.*Give weight_decay=numpy.logspace\("):
        network = vhat.NetworkRegressor(()).fit(x, 2 * x[:, 0] + 1e-6 * np.cos(40 * x[:, 0]))
    curve = network.selection_.curve
    assert len(curve) == 11  # both halves of the grid and the decade below, in one curve
    assert np.all(np.diff(curve.weight_decay) > 0)
    assert curve.best == 0
    assert network.weight_decay_ == curve.weight_decay[0]


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_a_recipe_that_is_no_minimum_is_told_in_options_of_the_estimator(activation):
    short = functools.partial(vhat.fit.AdamW, steps=50)
    network = vhat.NetworkRegressor((4,), activation=activation, weight_decay=1e-3, recipe=short).fit(X, Y)
    with pytest.warns(vhat.VhatWarning, match=r'recipe="minimum" trains to a certified minimum') as said:
        network.predict_interval(NEW)
    texts = [str(each.message) for each in said if each.category in (vhat.NotMinimumWarning, vhat.CurvatureWarning)]
    assert texts
    for text in texts:
        assert not any(word in text for word in ("polish", "loss", "curvature=", "alignment"))
        assert ('activation="tanh"' in text) == (activation == "relu")


def test_a_minimum_that_is_not_reached_is_told_in_options_of_the_estimator():
    with pytest.raises(vhat.PolishError, match=r"fewer units.*raise weight_decay=0.0 to about") as caught:
        vhat.NetworkRegressor((4,), weight_decay=0.0).fit(X[:8], Y[:8])
    assert "kinks" not in str(caught.value)
    assert "ggn" not in str(caught.value)


def test_a_recipe_of_your_own_is_used():
    short = functools.partial(vhat.fit.AdamW, steps=50)
    network = vhat.NetworkRegressor((4,), activation="relu", weight_decay=1e-3, recipe=short).fit(X, Y)
    assert network.fitted_.polished is None
    with pytest.warns(vhat.VhatWarning):
        network.predict_interval(NEW)


def test_the_seed_decides_the_fit_and_a_generator_draws_one():
    def fits(state):
        return vhat.NetworkRegressor((4,), weight_decay=1e-3, random_state=state).fit(X, Y).predict(NEW)

    np.testing.assert_array_equal(fits(1), fits(1))
    np.testing.assert_array_equal(fits(np.random.RandomState(1)), fits(np.random.RandomState(1)))
    assert not np.array_equal(fits(1), fits(2))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"weight_decay": "loo"}, "weight_decay='loo' is neither a finite number of at least 0"),
        ({"weight_decay": -1.0}, "neither a finite number"),
        ({"weight_decay": True}, "neither a finite number"),
        ({"weight_decay": [1e-3]}, "is not a list of two or more different numbers above 0"),
        ({"weight_decay": [0.0, 1e-3]}, r"weight_decay=\[0.0, 0.001\] is not a list"),
        ({"recipe": "sgd"}, "recipe='sgd' is not known"),
        ({"recipe": lambda network, lam: None}, "must return a recipe of vhat.fit"),
        ({"hidden_layer_sizes": (4, 0)}, "positive whole numbers"),
        ({"activation": "relu"}, 'has kinks, and recipe="minimum" .*Use activation="tanh"'),
        ({"activation": "sine"}, "activation='sine' is not known"),
    ],
)
def test_options_that_cannot_be_used_are_refused_in_words(options, told):
    with pytest.raises(vhat.InputError, match=told):
        vhat.NetworkRegressor(**(SMALL | options)).fit(X, Y)


# -- tables ----------------------------------------------------------------------------------------
def spoiled(column, values):
    frame = pd.DataFrame(X, columns=NAMES)
    frame[column] = values
    return frame


REFUSED = {
    "text in an array": (lambda: (np.array([[1.0, "x"], [2.0, "y"]], dtype=object), [1.0, 2.0]), "column 1 holds text"),
    "numbers as text, but one": (
        lambda: (spoiled("kind", [f"{row}.5" for row in range(59)] + ["deep"]), Y),
        r"X, row 59: column 'kind' holds 'deep' among numbers.*columns=\{'kind': 'number'\}",
    ),
    "numbers as text in an array": (lambda: (X.astype(str), Y), "column 0 holds numbers written as text.*astype"),
    "tiny target": (lambda: (X, 1e-200 * Y), "y has a standard deviation of .*leave the range of double precision"),
    "huge target": (lambda: (X, 1e200 * Y), "y has a standard deviation of .*Express it in another unit"),
    "missing in an array": (lambda: (np.where(X > 65, np.nan, X), Y), "column 1 \\(NaN in rows? .*Remove these rows"),
    "infinite": (lambda: (np.where(X > 65, np.inf, X), Y), "column 1 \\(inf in row"),
    "no response": (lambda: (X, np.where(np.arange(60) == 4, np.nan, Y)), "y is missing .* in row 4"),
    "text for y": (lambda: (X, ["a"] * 60), "y holds text \\(such as 'a'\\); a regression predicts numbers"),
    "dates for y": (lambda: (X, pd.date_range("2020", periods=60)), "y holds dates or times"),
    "constant target": (lambda: (X, np.full(60, 3.0)), "y is 3.0 in all 60 rows"),
    "constant output": (lambda: (X, np.column_stack([Y, np.zeros(60)])), "column 1 of y is 0.0 in all"),
    "constant columns": (lambda: (np.ones((60, 2)), Y), "every column of X is constant"),
    "one row": (lambda: (X[:1], Y[:1]), "1 sample .*Give at least two rows"),
    "unresolved column": (lambda: (X * [1e-14, 1, 1] + [1.0, 0, 0], Y), "column 0 of X varies by no more than"),
    "unresolved target": (lambda: (X, 1e14 + np.round(Y)), "y varies by no more than .*Subtract a constant"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_table_that_nothing_can_be_learned_from_is_refused_in_words(case):
    make, told = REFUSED[case]
    with pytest.raises(vhat.InputError, match=told):
        vhat.NetworkRegressor(**SMALL).fit(*make())


def test_too_few_rows_to_choose_a_decay_are_told_copies_counted_once():
    with pytest.warns(vhat.TableWarning, match=r"9 different rows are too few .*: 0.1 is taken"):
        network = vhat.NetworkRegressor((4,)).fit(np.tile(X[:9], (3, 1)), np.tile(Y[:9], 3))
    given = vhat.NetworkRegressor((4,), weight_decay=0.1).fit(X[:9], Y[:9])
    np.testing.assert_allclose(network.predict(NEW), given.predict(NEW), rtol=1e-12)


def test_a_constant_column_is_left_out_with_a_warning_and_missed_where_it_moves():
    wider = np.column_stack([X, np.full(60, 7.0)])
    with pytest.warns(vhat.TableWarning, match="column 3 of X has the same value in all 60 rows"):
        network = vhat.NetworkRegressor(**SMALL).fit(wider, Y)
    expected = vhat.NetworkRegressor(**SMALL).fit(X, Y).predict_interval(NEW)
    there = np.column_stack([NEW, np.full(7, 7.0)])
    np.testing.assert_array_equal(network.predict_interval(there).upper, expected.upper)
    there[2, 3] = 8.0
    for ask in (
        network.predict,
        network.predict_interval,
        network.fitted_.interval,
        network.fitted_.calibrate("loo").interval,
        lambda x: network.fitted_.acquire(x, 2),
    ):
        with pytest.warns(vhat.TableWarning, match="column 3 was 7.0 in all training rows and is not in row 2"):
            ask(there)


def test_the_fitted_model_takes_the_tables_that_the_estimator_takes():
    """Yes and no beside numbers, whole numbers that may be missing; what is missing is named."""
    frame = pd.DataFrame(
        {"a": X[:, 0], "b": X[:, 1] > np.median(X[:, 1]), "c": pd.array(np.arange(60) % 5, dtype="Int64")}
    )
    network = vhat.NetworkRegressor(**SMALL).fit(frame, Y)
    expected, found = network.predict_interval(frame[:4]), network.fitted_.interval(frame[["c", "b", "a"]][:4])
    np.testing.assert_array_equal(found.upper, expected.upper)
    frame.loc[2, "c"] = pd.NA
    with pytest.raises(vhat.InputError, match=r"(?s)'c'.*row 2|row 2.*'c'"):
        network.fitted_.interval(frame[:4])


def test_fewer_rows_than_columns_are_fitted_with_a_warning():
    rng = np.random.default_rng(0)
    wide = rng.normal(size=(12, 20))
    with pytest.warns(vhat.TableWarning, match=r"fewer rows \(12\) than columns \(20\)"):
        network = vhat.NetworkRegressor((2,), weight_decay=0.1).fit(wide, rng.normal(size=12))
    with pytest.warns(vhat.SupportWarning, match="hardly speak for 12 of 12 rows"):
        band = network.predict_interval(wide + 1.0, noise=1.0)
    assert np.all(band.unsupported > 0.05)


def test_columns_are_known_by_name(named):
    frame = pd.DataFrame(NEW, columns=NAMES)
    np.testing.assert_array_equal(named.feature_names_in_, NAMES)
    with pytest.raises(ValueError, match="feature names"):
        named.predict(frame[NAMES[::-1]])
    with pytest.raises(vhat.InputError, match="lacks the columns"):
        named.fitted_.interval(frame[["age"]])
    # the fitted model itself knows what to do with another order
    found = named.fitted_.interval(frame[NAMES[::-1]])
    np.testing.assert_array_equal(found.upper, named.predict_interval(frame).upper)


def test_points_are_checked_by_the_estimator_and_by_its_fitted_model(named):
    frame = pd.DataFrame(NEW, columns=NAMES)
    spoilt = frame.assign(age=np.where(frame.index == 1, np.nan, frame["age"]))[NAMES]
    with pytest.raises(vhat.InputError, match=r"'age' \(NaN in row 1\)"):
        named.fitted_.interval(spoilt)
    with pytest.raises(vhat.InputError, match="'age' holds numbers written as text"):
        named.fitted_.interval(frame.assign(age="3.5"))
    with pytest.raises(vhat.InputError, match="row 0: column 'age' holds 'old', which is not a number"):
        named.predict_interval(frame.assign(age="old"))
    with pytest.raises(vhat.InputError, match=r"'age' \(NaN in row 1\)"):
        named.fitted_.interval(spoilt[NAMES[::-1]])  # the name, whatever the order
    with pytest.raises(vhat.InputError, match="3 columns, so give"):
        named.fitted_.interval(NEW[:, :2])


def test_the_index_of_a_frame_is_that_of_the_interval(named):
    frame = pd.DataFrame(NEW, columns=NAMES, index=pd.Index(list("abcdefg"), name="well"))
    pd.testing.assert_index_equal(named.predict_interval(frame).to_pandas().index, frame.index)
    pd.testing.assert_index_equal(named.fitted_.interval(frame).to_pandas().index, frame.index)
    assert list(named.fitted_.interval(NEW).to_pandas().index) == list(range(7))
    both = vhat.NetworkRegressor((), weight_decay=1e-2).fit(frame.assign(age=np.arange(7.0)), NEW[:, :2])
    twice = both.predict_interval(frame.assign(age=3.0), noise=1.0, bound="chebyshev").to_pandas()
    assert twice.index.names == ["well", "output"]
    assert list(twice.index[:3]) == [("a", 0), ("a", 1), ("b", 0)]


def test_printing_shows_the_digits_that_matter_and_the_beginning_of_the_guarantee():
    band = vhat.NetworkRegressor(**SMALL).fit(X, Y + 1e12).predict_interval(NEW)
    text = repr(band)
    for row, line in enumerate(text.splitlines()[3:9]):
        center, lower, upper = (float(part) for part in line.split()[:3])
        found, half = np.array([lower, center, upper]), band.half_width[row]
        np.testing.assert_allclose(
            found, [band.lower[row], band.center[row], band.upper[row]], atol=0.01 * half, rtol=0
        )
    assert text.endswith("by the isoperimetric bound.\nIn full: .guarantee")
    assert "assumed" not in text
    assert "assumed" in band.guarantee


# -- on disk -----------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore::vhat.TableWarning")
def test_a_saved_estimator_predicts_in_a_fresh_process(tmp_path):
    frame = pd.DataFrame(np.column_stack([X, np.ones(60)]), columns=[*NAMES, "idle"])
    network = vhat.NetworkRegressor(**SMALL).fit(frame, Y)
    network.save(tmp_path / "model")
    band = network.predict_interval(frame[:7], 0.1, target="observation")
    code = (
        "import sys, numpy as np, pandas as pd, vhat\n"
        "from tests.conftest import jax\n"
        "network = vhat.NetworkRegressor.load(sys.argv[1])\n"
        "frame = pd.DataFrame(np.load(sys.argv[2]), columns=network.feature_names_in_)\n"
        "band = network.predict_interval(frame, 0.1, target='observation')\n"
        "print(band.lower.tobytes().hex(), network.get_params(), network.n_features_in_, network.weight_decay_)\n"
        "try: network.predict(frame[frame.columns[::-1]])\n"
        "except ValueError: print('in order')"
    )
    np.save(tmp_path / "new.npy", frame[:7].to_numpy())
    command = [sys.executable, "-W", "error", "-c", code, str(tmp_path / "model"), str(tmp_path / "new.npy")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"{band.lower.tobytes().hex()} {network.get_params()} 4 0.01\nin order\n"


def test_the_fitted_model_can_be_saved_alone_in_the_users_units(network, tmp_path):
    network.fitted_.save(tmp_path / "copy")
    network.fitted_.save(tmp_path / "reference", data="reference")
    expected = network.predict_interval(NEW).upper
    for again in (vhat.load(tmp_path / "copy"), vhat.load(tmp_path / "reference", data=(X, Y))):
        np.testing.assert_array_equal(again.interval(NEW).upper, expected)
        assert again.polished.relative_gradient == network.fitted_.polished.relative_gradient


def test_what_cannot_be_saved_or_loaded_says_so(network, tmp_path):
    short = functools.partial(vhat.fit.Minimum, warmup=200)
    own = vhat.NetworkRegressor(**SMALL, recipe=short).fit(X, Y)
    own.save(tmp_path / "own")
    with pytest.raises(vhat.StoreError, match=r"a function, which is not saved. Give load"):
        vhat.NetworkRegressor.load(tmp_path / "own")
    assert vhat.NetworkRegressor.load(tmp_path / "own", recipe=short).get_params() == own.get_params()
    network.save(tmp_path / "plain")
    with pytest.raises(vhat.StoreError, match=r"'minimum', which was saved. Leave"):
        vhat.NetworkRegressor.load(tmp_path / "plain", recipe=short)
    with pytest.raises(vhat.StoreError, match="holds a NetworkRegressor, not a fitted model"):
        vhat.load(tmp_path / "plain")
    drawn = vhat.NetworkRegressor(**SMALL, random_state=np.random.RandomState(0)).fit(X, Y)
    with pytest.raises(vhat.StoreError, match="random_state="):
        drawn.save(tmp_path / "drawn")


def test_without_scikit_learn_the_rest_works_and_the_name_says_what_to_install():
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import vhat\n"
        "assert vhat.from_jax and vhat.InputError\n"
        "try: vhat.NetworkRegressor\n"
        "except ImportError as error: print(type(error).__name__, error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith("MissingPackage NetworkRegressor is a scikit-learn estimator")
    assert "pip install" in said


def test_rows_of_weight_zero_are_told_from_the_rows_that_count(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(20, 1))
    y = X[:, 0] + 0.1 * rng.standard_normal(20)
    weights = np.ones(20)
    weights[[3, 11]] = 0.0
    network = vhat.NetworkRegressor((), weight_decay=1e-3).fit(X, y, sample_weight=weights)
    np.testing.assert_array_equal(network.rows_, np.delete(np.arange(20), [3, 11]))
    left_out = network.fitted_.leave_one_out()
    row = int(np.flatnonzero(network.rows_ == 5)[0])
    weights[5] = 0.0
    refit = vhat.NetworkRegressor((), weight_decay=1e-3).fit(X, y, sample_weight=weights)
    assert left_out.prediction[row] == pytest.approx(refit.predict(X[5:6])[0], abs=0.01)
    assert abs(left_out.prediction[row] - network.predict(X[6:7])[0]) > 0.02
    network.save(tmp_path / "kept")
    np.testing.assert_array_equal(vhat.NetworkRegressor.load(tmp_path / "kept").rows_, network.rows_)


@pytest.mark.filterwarnings("ignore::vhat.SelectionWarning")  # the grid is short on purpose
def test_the_widths_are_those_of_the_network_that_was_trained(tmp_path):
    """A constant column is left out, and a grid of weight decays is a list in the report and on disk."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(-1, 1, 30), np.full(30, 7.0)])
    y = X[:, 0] + 0.1 * rng.standard_normal(30)
    with pytest.warns(vhat.TableWarning, match="the model leaves it out"):
        network = vhat.NetworkRegressor((3,), weight_decay=[1e-3, 1e-2]).fit(X, y)
    assert network.widths_ == (1, 3, 1)
    assert network.fitted_.problem.p == (1 + 1) * 3 + (3 + 1)
    network.save(tmp_path / "kept")
    loaded = vhat.NetworkRegressor.load(tmp_path / "kept")
    assert loaded.widths_ == (1, 3, 1)
    assert "0.001, 0.01" in loaded.report(tmp_path / "page.html").read_text()


def test_a_report_says_on_the_page_that_a_constant_column_moved(tmp_path):
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(-1, 1, 30), np.full(30, 7.0)])
    y = X[:, 0] + 0.1 * rng.standard_normal(30)
    with pytest.warns(vhat.TableWarning, match="the model leaves it out"):
        network = vhat.NetworkRegressor((), weight_decay=1e-2).fit(X, y)
    moved = X[:5].copy()
    moved[2, 1] = 9.0
    with pytest.warns(vhat.TableWarning) as said:
        page = network.report(tmp_path / "page.html", held_out=(moved, y[:5] + 0.1))  # other responses: fresh rows
    (sentence,) = {str(each.message) for each in said}
    assert sentence in data_of(page)["warnings"]
