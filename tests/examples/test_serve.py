"""The example of a server answers rows with the intervals of the model, and refuses in words what it cannot take."""

from __future__ import annotations

import importlib.util
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import vhat

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
SOURCE = Path(__file__).parents[2] / "examples" / "serve.py"


def load_example():
    spec = importlib.util.spec_from_file_location("serve_example", SOURCE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["serve_example"] = module  # where its dataclass looks up the names of types
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"depth": rng.uniform(0, 4, 100), "kind": rng.choice(["sand", "clay"], 100)})
    return frame.assign(y=3 * np.cos(frame["depth"]) + (frame["kind"] == "sand") + 0.2 * rng.normal(size=100))


@pytest.fixture(scope="module")
def network(table):
    return vhat.NetworkRegressor(hidden_layer_sizes=(4,), weight_decay=1e-3).fit(table[["depth", "kind"]], table["y"])


@pytest.fixture(scope="module")
def client(network, tmp_path_factory):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions want another HTTP client
        from fastapi.testclient import TestClient

    folder = tmp_path_factory.mktemp("deployed")
    network.sketch().save(folder)
    serve = load_example()
    with TestClient(serve.application(str(folder), serve.Limits(body=20_000, rows=60))) as found:
        yield found


@pytest.mark.parametrize("target", ["mean", "observation"])
def test_rows_are_answered_with_the_intervals_of_the_model(client, network, table, target):
    rows = table[["depth", "kind"]][:50]
    answer = client.post("/intervals", json={"rows": rows.to_dict("records"), "delta": 0.1, "target": target})
    assert answer.status_code == 200, answer.text
    found = pd.DataFrame(answer.json()["intervals"])
    band = network.predict_interval(rows, 0.1, target=target)
    for name in ("center", "lower", "upper"):
        np.testing.assert_allclose(found[name], getattr(band, name), rtol=1e-9)
    assert set(found["status"]) == {"converged"}
    assert client.get("/health").json() == {"status": "ready"}


def test_rows_of_which_training_knows_nothing_have_a_status(client):
    rows = [{"depth": 1.0, "kind": "gravel"}, {"depth": None, "kind": "clay"}]
    answer = client.post("/intervals", json={"rows": rows})
    assert [row["status"] for row in answer.json()["intervals"]] == ["unknown level", "missing cell"]


def test_columns_may_stand_in_any_order_and_others_are_ignored(client):
    one = client.post("/intervals", json={"rows": [{"depth": 1.0, "kind": "clay"}]}).json()
    assert client.post("/intervals", json={"rows": [{"id": 7, "kind": "clay", "depth": 1.0}]}).json() == one


ROW = {"depth": 1.0, "kind": "clay"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"rows": []}, "rows is empty"),
        ({"row": [ROW]}, "list of rows"),
        ([ROW], "list of rows"),
        ({"rows": [ROW], "level": 0.9}, "unknown field 'level'"),
        ({"rows": [ROW], "delta": 1.5}, "delta=1.5 is not a number between 0 and 1"),
        ({"rows": [ROW], "delta": True}, "delta=True"),
        ({"rows": [ROW], "target": "median"}, "target='median'"),
        ({"rows": [{"depth": 1.0}]}, "no column 'kind', which the model was trained with"),
        ({"rows": [ROW, {"depth": 1.0}]}, "row 1 is not an object with the names of row 0"),
        ({"rows": [ROW, 3]}, "row 1 is not an object"),
        ({"rows": [{"depth": [1.0], "kind": "clay"}]}, "holds a list"),
        ({"rows": [{"depth": "deep", "kind": "clay"}]}, "deep"),
        ({"rows": [ROW, {"depth": "deep", "kind": "clay"}]}, "the cells of column 'depth' have no common type"),
        ({"rows": [{"depth": True, "kind": "clay"}, ROW]}, "have no common type"),
        ({"rows": [{"depth": 10**400, "kind": "clay"}]}, "have no common type"),
        ({"rows": [{"depth": 1.0, "kind": "\ud800"}]}, "row 0 holds half of a surrogate pair"),
        ({"rows": [ROW | {"\ud800": 1.0}]}, "row 0 holds half of a surrogate pair"),
    ],
)
def test_what_is_wrong_with_a_request_is_said(client, body, words):
    answer = client.post("/intervals", content=json.dumps(body))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "InputError"
    assert words in answer.json()["error"]["message"]


def test_a_body_that_is_not_json_is_refused(client):
    for body in (b"depth=1", b"\xff\xfe", b"[" * 10_000):
        answer = client.post("/intervals", content=body)
        assert answer.status_code == 400
        assert "not JSON" in answer.json()["error"]["message"]


def test_too_many_rows_and_too_many_bytes_are_refused(client):
    answer = client.post("/intervals", json={"rows": [ROW] * 61})
    assert answer.status_code == 413
    assert answer.json()["error"] == {
        "type": "TooLarge",
        "message": "61 rows in one request, of at most 60. Send them in several.",
    }

    def endless():  # without a length in its header
        for _ in range(30):
            yield b" " * 1_000

    for content in (b" " * 30_000, endless()):
        answer = client.post("/intervals", content=content)
        assert answer.status_code == 413
        assert "more than 20,000 bytes" in answer.json()["error"]["message"]


def test_a_place_without_a_model_is_refused_at_the_start(tmp_path):
    with pytest.raises(vhat.StoreError, match="holds no model"):
        load_example().application(str(tmp_path))
