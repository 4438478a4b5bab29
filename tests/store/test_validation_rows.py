"""Linearised models and validation rows, saved and loaded."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import vhat

from ..intervals.test_linearised import data, jax_model, numpy_model, smooth, torch_model


def rows(m=40):
    rng = np.random.default_rng(8)
    Z = rng.normal(size=(m, 2))
    return Z, smooth(data()[1], Z) + 0.2 * rng.normal(size=m)


def code_of(framework):
    if framework == "numpy":
        return smooth
    if framework == "jax":
        import jax.numpy as jnp

        return lambda p, Z: jnp.tanh(Z @ p["a"]) @ p["b"]
    layers = (torch.nn.Linear(2, 3, bias=False), torch.nn.Tanh(), torch.nn.Linear(3, 1, bias=False))
    return torch.nn.Sequential(*layers, torch.nn.Flatten(0)).double()


@pytest.mark.parametrize("framework", ["numpy", "jax", "torch"])
def test_a_linearised_model_comes_back_to_the_last_bit(framework, tmp_path):
    fitted, x = {"numpy": numpy_model, "jax": jax_model, "torch": torch_model}[framework]()
    tangent = fitted.linearised(validation=rows())
    tangent.save(tmp_path / "model")
    again = vhat.load(tmp_path / "model", model=code_of(framework))
    one, other = tangent.interval(x), again.interval(x)
    np.testing.assert_array_equal(other.half_width, one.half_width)
    np.testing.assert_array_equal(other.center, one.center)
    assert other.guarantee == one.guarantee
    assert other.noise_source == "estimated from 40 validation rows"
    assert repr(again.audit()) == repr(tangent.audit())
    wider = again.linearised(0.5 * float(tangent.workspace.refit.weight_decay[0]))
    assert np.all(wider.interval(x, noise=1.0).half_width > tangent.interval(x, noise=1.0).half_width)


def test_validation_rows_come_back_with_the_model(tmp_path):
    fitted, x = numpy_model()
    fitted = fitted.polish().with_validation(*rows())
    fitted.save(tmp_path / "model")
    again = vhat.load(tmp_path / "model", model=smooth)
    assert again.interval(x).noise == fitted.interval(x).noise
    assert again.audit()["early stopping"] == fitted.audit()["early stopping"]
    with pytest.raises(vhat.InputError, match="were saved with the model"):
        vhat.load(tmp_path / "model", model=smooth, validation=rows())


def test_a_reference_asks_for_the_same_rows(tmp_path):
    X, _, y, x = data()
    fitted, _ = numpy_model()
    tangent = fitted.linearised(0.02, validation=rows())
    tangent.save(tmp_path / "model", data="reference")
    with pytest.raises(vhat.StoreError, match=r"validation=\(X_val, y_val\)"):
        vhat.load(tmp_path / "model", model=smooth, data=(X, y))
    Z, t = rows()
    with pytest.raises(vhat.StoreError, match="validation y given is not the one"):
        vhat.load(tmp_path / "model", model=smooth, data=(X, y), validation=(Z, t + 1e-9))
    again = vhat.load(tmp_path / "model", model=smooth, data=(X, y), validation=(Z, t))
    assert again.interval(x).noise == tangent.interval(x).noise


def test_frames_and_curves_of_several_variables(tmp_path):
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.normal(size=(30, 2)), columns=["a", "b"])
    y = frame["a"].to_numpy() + 0.1 * rng.normal(size=30)

    def plane(q, F):
        return q[0] * np.asarray(F["a"]) + q[1] * np.asarray(F["b"])

    extra = pd.DataFrame(rng.normal(size=(9, 2)), columns=["a", "b"])
    fitted = vhat.from_numpy(plane, [1.0, 0.0], frame, y, weight_decay=1e-6, validation=(extra, extra["a"] + 0.1))
    fitted.linearised(1e-3).save(tmp_path / "frame")
    again = vhat.load(tmp_path / "frame", model=plane)
    assert again.interval(frame[:2]).noise == fitted.linearised(1e-3).interval(frame[:2]).noise

    def curve(v, a, b):
        return a * v[0] + b * v[1]

    columns = frame.to_numpy().T
    bent = vhat.from_curve_fit(curve, [1.0, 0.0], columns, y).with_validation(extra.to_numpy().T, extra["a"] + 0.1)
    bent.save(tmp_path / "curve")
    assert vhat.load(tmp_path / "curve", model=curve).linearised(0.1).interval(columns[:, :2]).noise > 0
