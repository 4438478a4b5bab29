"""A calibration on disk, with the model that it belongs to."""

from __future__ import annotations

import numpy as np
import pytest

import vhat


def curve(q, x):
    return q[0] * np.exp(-q[1] * x)


@pytest.fixture(scope="module")
def fitted():
    x = np.linspace(0, 4, 40)
    y = curve([2.0, 1.0], x) + 0.05 * np.random.default_rng(0).normal(size=40)
    return vhat.from_numpy(curve, [2.0, 1.0], x, y).polish()


FRESH = np.linspace(0.1, 3.9, 29)
RESPONSES = curve([2.0, 1.0], FRESH) + 0.05 * np.random.default_rng(1).normal(size=29)


@pytest.mark.parametrize("kind", ["split", "loo", "noise", "sketch"])
def test_a_calibration_comes_back_with_its_model(fitted, kind, tmp_path):
    made = {
        "split": lambda: fitted.calibrate(FRESH, RESPONSES),
        "loo": lambda: fitted.calibrate("loo", noise_shape="prediction"),
        "noise": lambda: fitted.calibrate(FRESH, RESPONSES, noise=0.2, curvature="ggn"),
        "sketch": lambda: fitted.sketch().calibrate(FRESH, RESPONSES),
    }[kind]()
    made.save(tmp_path / "kept")
    again = vhat.load(tmp_path / "kept", model=curve)
    assert isinstance(again, vhat.Calibrated)
    assert again.guarantee == made.guarantee
    first, second = made.interval([0.5, 2.0], 0.2), again.interval([0.5, 2.0], 0.2)
    np.testing.assert_array_equal(second.lower, first.lower)
    np.testing.assert_array_equal(second.upper, first.upper)
    assert second.guarantee == first.guarantee
    np.testing.assert_array_equal(again.quantiles([0.5], [0.1, 0.9]), made.quantiles([0.5], [0.1, 0.9]))


def test_a_model_that_is_saved_over_a_calibration_comes_back_without(fitted, tmp_path):
    fitted.calibrate(FRESH, RESPONSES).save(tmp_path / "kept")
    fitted.save(tmp_path / "kept")
    assert isinstance(vhat.load(tmp_path / "kept", model=curve), vhat.FittedModel)


def test_a_solver_of_its_own_is_refused_in_words(fitted, tmp_path):
    with pytest.raises(vhat.StoreError, match=r"solver=.*which is not saved.*solver='auto'"):
        fitted.calibrate(FRESH, RESPONSES, solver=vhat.Dense()).save(tmp_path / "kept")
