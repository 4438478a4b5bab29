"""A saved sketch gives the same intervals in another process, and contains no training row."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

import vhat
from tests import oracle
from tests.sketch.cases import curve, network, points, sampled, tangent

ASK = """
import sys, numpy as np, vhat
from tests import oracle
sketch = vhat.load(sys.argv[1], model=oracle.network("tanh", None))
x = np.load(sys.argv[2])
np.save(sys.argv[3], sketch.interval(x, 0.1, target="observation").upper)
"""


@pytest.mark.slow
def test_intervals_are_bit_equal_in_a_fresh_process(tmp_path, monkeypatch):
    sketch = sampled(network(), 32, monkeypatch)
    x = points()
    sketch.save(tmp_path / "sketch")
    np.save(tmp_path / "x.npy", x)
    names = [str(tmp_path / name) for name in ("sketch", "x.npy", "upper.npy")]
    subprocess.run([sys.executable, "-c", ASK, *names], check=True)
    assert np.array_equal(np.load(names[2]), sketch.interval(x, 0.1, target="observation").upper)


@pytest.mark.parametrize("kind", ["numpy", "jax", "torch"])
def test_a_sketch_comes_back_with_everything_it_had(kind, tmp_path):
    if kind == "numpy":
        fitted, x = curve(), np.linspace(0, 6, 5)
        model = fitted.problem.autodiff.model.predict
    elif kind == "jax":
        fitted, x = network(), points(m=5)
        model = oracle.network("tanh", None)
    else:
        (fitted, model), x = tangent(), points(3, m=5)
    sketch = fitted.sketch(audit=True)
    sketch.save(tmp_path)
    again = vhat.load(tmp_path, model=model)
    assert isinstance(again, vhat.Sketch)
    one, two = sketch.interval(x), again.interval(x)
    assert np.array_equal(one.upper, two.upper)
    assert one.guarantee == two.guarantee
    assert str(sketch.audit()) == str(again.audit())
    assert repr(sketch) == repr(again)


@pytest.mark.parametrize("exact", [True, False])
def test_no_training_row_is_in_the_directory(exact, tmp_path, monkeypatch):
    fitted = network()
    sketch = fitted.sketch() if exact else sampled(fitted, 16, monkeypatch)
    sketch.save(tmp_path)
    (arrays,) = tmp_path.glob("v*/arrays.safetensors")
    X, y = fitted.problem.X, fitted.problem.targets
    for name, array in load_file(arrays).items():
        numbers = array.astype(np.float64).ravel()
        assert not np.isin(np.asarray(X).ravel(), numbers).any(), name
        assert not np.isin(y.ravel(), numbers).any(), name
        assert not np.isin(fitted.predict(X), numbers).any(), name
    (manifest,) = tmp_path.glob("v*/manifest.json")
    assert repr(float(y[0, 0])) not in manifest.read_text()


def test_a_last_layer_is_sketched_and_no_row_of_the_backbone_is_kept(tmp_path):
    import torch

    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4)).astype(np.float32)
    y = X[:, 0] + 0.1 * rng.normal(size=60)
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 10), torch.nn.ReLU(), torch.nn.Linear(10, 1), torch.nn.Flatten(0))
    fitted = vhat.from_torch(module, X, y, weight_decay=1e-3, parameters="last").polish()
    sketch = fitted.sketch()
    x = rng.normal(size=(5, 4)).astype(np.float32)
    np.testing.assert_allclose(sketch.interval(x).half_width, fitted.interval(x).half_width, rtol=1e-8)
    sketch.save(tmp_path)
    again = vhat.load(tmp_path, model=module)
    assert np.array_equal(again.interval(x).upper, sketch.interval(x).upper)
    (arrays,) = tmp_path.glob("v*/arrays.safetensors")
    for name, array in load_file(arrays).items():
        assert not np.isin(X.ravel(), array.ravel()).any(), name


def test_a_fitted_model_is_not_mistaken_for_a_sketch(tmp_path):
    fitted = curve()
    fitted.save(tmp_path)
    assert isinstance(vhat.load(tmp_path, model=fitted.problem.autodiff.model.predict), vhat.FittedModel)
