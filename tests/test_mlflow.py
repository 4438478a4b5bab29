"""A saved sketch in MLflow gives the intervals of ``vhat predict``, in a process that has nothing else."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import vhat

pytestmark = pytest.mark.filterwarnings("ignore:.*type hint is inferred")  # of MLflow about itself, on its import
RESULTS = ["center", "lower", "upper", "standard_error", "unsupported", "status"]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """A saved sketch, and rows to predict."""
    rng = np.random.default_rng(0)
    depth = rng.uniform(0, 4, 120)
    table = pd.DataFrame({"depth": depth, "warmth": 3 * np.cos(depth) + 0.3 * rng.normal(size=120)})
    network = vhat.NetworkRegressor(hidden_layer_sizes=(4,), weight_decay=1e-3).fit(table[["depth"]], table["warmth"])
    folder = tmp_path_factory.mktemp("deployed")
    network.sketch().save(folder)
    return network, folder, pd.DataFrame({"id": np.arange(9), "depth": np.linspace(0, 4, 9)})


def test_options_and_directories_are_checked_before_mlflow_sees_them(deployed, tmp_path):
    pytest.importorskip("mlflow")
    _, folder, _ = deployed
    with pytest.raises(vhat.InputError, match="delta"):
        vhat.mlflow.save_model(folder, tmp_path / "packed", delta=2.0)
    with pytest.raises(vhat.StoreError):
        vhat.mlflow.save_model(tmp_path / "nothing", tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


def test_without_mlflow_its_extra_is_named(deployed, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(vhat.MissingPackage, match=r"pip install \"vhat\[mlflow\]\""):
        vhat.mlflow.save_model(deployed[1], tmp_path / "packed")


@pytest.mark.slow
def test_a_fresh_process_gives_the_intervals_of_the_estimator(deployed, tmp_path):
    pytest.importorskip("mlflow")
    network, folder, new = deployed
    vhat.mlflow.save_model(folder, tmp_path / "packed", delta=0.1, target="observation", keep=["id"])
    new.to_csv(tmp_path / "new.csv", index=False)
    code = (
        "import sys, mlflow, pandas as pd\n"
        "model = mlflow.pyfunc.load_model(sys.argv[1])\n"
        "model.predict(pd.read_csv(sys.argv[2])).to_pickle(sys.argv[3])\n"
    )
    paths = [str(tmp_path / name) for name in ("packed", "new.csv", "out.pickle")]
    subprocess.run([sys.executable, "-c", code, *paths], check=True, env=dict(os.environ), timeout=300)
    found = pd.read_pickle(tmp_path / "out.pickle")
    band = network.sketch().predict_interval(new[["depth"]], 0.1, target="observation")
    assert list(found) == ["id", *RESULTS]
    np.testing.assert_array_equal(found["id"], new["id"])
    np.testing.assert_allclose(found["lower"], band.lower, rtol=1e-12)
    np.testing.assert_allclose(found["upper"], band.upper, rtol=1e-12)


@pytest.mark.slow
def test_a_logged_model_is_found_again_and_holds_no_pickle(deployed, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    network, folder, new = deployed
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database would need another package
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run():
        info = vhat.mlflow.log_model(folder, "intervals")
    model = mlflow.pyfunc.load_model(info.model_uri)
    np.testing.assert_allclose(
        model.predict(new)["upper"], network.sketch().predict_interval(new[["depth"]]).upper, rtol=1e-12
    )
    assert not list(tmp_path.rglob("*.pkl"))
    with pytest.raises(vhat.InputError, match="give a pandas DataFrame"):
        vhat.mlflow._load_pyfunc(str(folder)).predict([[1.0]])
