"""For few parameters a sketch is exact: it agrees with the fitted model, and so with a dense oracle."""

from __future__ import annotations

import numpy as np
import pytest

import vhat
from tests import oracle
from tests.sketch.cases import curve, network, points, tangent

SAME = ("center", "lower", "upper", "standard_error", "weighted_norm", "unsupported")


def agree(sketch, fitted, x, **options):
    found, known = sketch.interval(x, **options), fitted.interval(x, **options)
    for name in SAME:
        np.testing.assert_allclose(getattr(found, name), getattr(known, name), rtol=1e-8, atol=1e-10, err_msg=name)
    assert found.guarantee == known.guarantee
    assert (found.bound, found.curvature, found.df, found.noise) == (
        known.bound,
        known.curvature,
        known.df,
        known.noise,
    )


@pytest.mark.parametrize("options", [{}, {"target": "observation"}, {"bias": "plug-in"}, {"simultaneous": True}])
def test_every_number_of_a_band_is_that_of_the_fitted_model(options):
    fitted = curve()
    agree(fitted.sketch(), fitted, np.linspace(0, 6, 9), **options)


@pytest.mark.parametrize("bound", ["isoperimetric", "asymptotic", "tight", "chebyshev", "theorem", "sharp"])
def test_every_bound(bound):
    fitted = curve()
    agree(fitted.sketch(), fitted, np.linspace(0, 6, 9), bound=bound)


@pytest.mark.slow
def test_the_norm_is_that_of_explicit_matrices():
    fitted = network()
    x = points()
    problem = fitted.problem
    V, _, unsupported, _ = oracle.dense(
        oracle.network("tanh", None), fitted.params, problem.X, problem.targets[:, 0], x, 1e-2
    )
    found = fitted.sketch().weighted_norm(x)
    np.testing.assert_allclose(found.value, np.asarray(V).ravel(), rtol=1e-7)
    np.testing.assert_allclose(found.unsupported, np.asarray(unsupported).ravel(), atol=1e-7)


@pytest.mark.slow
def test_several_outputs_of_different_noise():
    fitted = network(outputs=2)
    sigma = np.array([[0.1, 0.3]])
    x = points()
    found, known = fitted.sketch(noise=sigma).interval(x), fitted.interval(x, noise=sigma)
    np.testing.assert_allclose(found.half_width, known.half_width, rtol=1e-8)


@pytest.mark.slow
def test_weights_and_noise_of_each_row():
    rng = np.random.default_rng(3)
    sigma = rng.uniform(0.05, 0.2, 80)
    fitted = network(sample_weight=1 / sigma**2)
    x = points()
    found, known = fitted.sketch(noise=sigma).interval(x), fitted.interval(x, noise=sigma)
    np.testing.assert_allclose(found.half_width, known.half_width, rtol=1e-8)
    np.testing.assert_allclose(found.unsupported, known.unsupported, atol=1e-8)


@pytest.mark.slow
def test_a_linearised_torch_module():
    fitted, module = tangent()
    x = points(3)
    agree(fitted.sketch(), fitted, x)
    import torch

    with torch.no_grad():
        np.testing.assert_allclose(fitted.sketch().predict(x), module.double()(torch.as_tensor(x)).numpy(), rtol=1e-12)


def test_another_noise_level_scales_the_width():
    fitted = curve()
    sketch = fitted.sketch()
    x = np.linspace(0, 6, 9)
    np.testing.assert_allclose(
        sketch.interval(x, noise=0.2).half_width, fitted.interval(x, noise=0.2).half_width, rtol=1e-8
    )


def test_calibration_by_rows_is_that_of_the_fitted_model():
    fitted = curve()
    rng = np.random.default_rng(5)
    x = rng.uniform(0, 4, 40)
    y = 2 * np.exp(-0.7 * x) + 0.05 * rng.normal(size=40)
    found = fitted.sketch().calibrate(x, y).interval([1.0, 3.0], 0.1)
    known = fitted.calibrate(x, y).interval([1.0, 3.0], 0.1)
    np.testing.assert_allclose(found.half_width, known.half_width, rtol=1e-9)


def test_training_rows_are_refused_for_calibration():
    fitted = curve()
    problem = fitted.problem
    with pytest.raises(vhat.InputError, match="training rows"):
        fitted.sketch().calibrate(problem.X, problem.targets[:, 0])


def test_a_row_alone_is_answered_as_in_company():
    sketch = network().sketch()
    x = points()
    together = sketch.interval(x)
    alone = [sketch.interval(row[None]).half_width[0] for row in x]
    np.testing.assert_allclose(alone, together.half_width, rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"simultaneous": "sup-t", "bound": "asymptotic"}, "ask the fitted model"),
        ({"tail": vhat.Tail(1.0, 0.0)}, r"Tail\.relative"),
        ({"tail": "estimated"}, "ask the fitted model"),
        ({"noise": [0.1] * 60}, r"fitted\.sketch\(noise="),
        ({"noise": -1.0}, "positive"),
    ],
)
def test_what_only_training_rows_could_answer_is_refused_in_words(options, words):
    sketch = curve().sketch()
    with pytest.raises(vhat.InputError, match=words):
        sketch.interval([1.0], **options)


def test_leaving_rows_out_is_refused():
    with pytest.raises(vhat.InputError, match="no training rows to leave out"):
        curve().sketch().calibrate("loo")


def test_validation_rows_that_calibrate_are_named_as_by_the_fitted_model():
    rng = np.random.default_rng(7)
    x = rng.uniform(0, 4, 40)
    y = 2 * np.exp(-0.7 * x) + 0.05 * rng.normal(size=40)
    fitted = curve().with_validation(x, y)
    assert fitted.sketch().calibrate(x, y).guarantee == fitted.calibrate(x, y).guarantee
    assert "40 OF THEM ARE VALIDATION ROWS" in fitted.sketch().calibrate(x, y).guarantee


def test_copies_of_training_rows_in_a_coarse_table_are_counted():
    rng = np.random.default_rng(0)

    def draw(n):
        x = rng.integers(0, 3, n).astype(float)
        return x, np.round(x + rng.normal(size=n))

    fitted = vhat.from_numpy(lambda q, x: q[0] + q[1] * x, [0.0, 1.0], *draw(80)).polish()
    x, y = draw(30)
    with pytest.warns(vhat.CalibrationWarning, match="are also training rows"):
        known = fitted.calibrate(x, y)
    with pytest.warns(vhat.CalibrationWarning, match="are also training rows"):
        found = fitted.sketch().calibrate(x, y)
    assert found.repeated == known.repeated > 0
    assert found.guarantee == known.guarantee


def test_digests_say_nothing_of_the_order_of_rows_and_can_be_left_out():
    fitted = curve()
    kept = fitted.sketch().row_digests
    assert np.all(kept[:-1] <= kept[1:])
    assert fitted.sketch(digests=False).row_digests is None


def test_parameters_off_the_minimum_are_noticed_under_less_noise():
    fitted = curve()
    moved = vhat.from_numpy(
        fitted.problem.autodiff.model.predict,
        np.asarray(fitted.params) + 3e-4,
        fitted.problem.X,
        fitted.problem.targets[:, 0],
    )
    sketch = moved.sketch(noise=0.3)
    with pytest.warns(vhat.NotMinimumWarning):
        known = moved.interval([1.0], noise=0.003)
    assert "are not a minimum" in known.guarantee
    assert "are not a minimum" in sketch.interval([1.0], noise=0.003).guarantee
    assert "are not a minimum" not in sketch.interval([1.0]).guarantee


def test_minimum_norm_fits_are_refused():
    rng = np.random.default_rng(0)
    J = rng.normal(size=(6, 10))
    fitted = vhat.from_numpy(lambda q, X: X @ q, np.linalg.pinv(J) @ np.ones(6), J, np.ones(6), jac=lambda q, X: X)
    with pytest.raises(vhat.InputError, match="span of the training gradients"):
        fitted.sketch(noise=0.1, solver=vhat.MinimumNorm())


@pytest.mark.parametrize("name", ["report", "leave_one_out", "polish", "acquire"])
def test_what_a_sketch_does_not_have_is_said_in_words(name):
    with pytest.raises(AttributeError, match="needs the training rows"):
        getattr(curve().sketch(), name)


def test_an_audit_that_was_not_made_is_named():
    with pytest.raises(vhat.InputError, match=r"sketch\(audit=True\)"):
        curve().sketch().audit()
