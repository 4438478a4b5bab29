"""Rows in files give the numbers that their arrays give, block by block where that is possible."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest

import vhat

pytest.importorskip("pyarrow")

INPUTS = ["a", "b"]


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(40, 2)), columns=INPUTS)
    frame["y"] = frame["a"] - 2 * frame["b"] + 0.1 * rng.normal(size=40)
    frame["z"] = 2 * frame["y"]
    frame["name"] = "text"
    return frame


@pytest.fixture(scope="module", params=["parquet", "csv"])
def folder(request, table, tmp_path_factory):
    """Three files, one of them below the others, beside files that are no data."""
    place = tmp_path_factory.mktemp(request.param)
    (place / "later").mkdir()
    for name, part in (("a", table[:10]), ("b", table[10:25]), ("later/c", table[25:])):
        if request.param == "parquet":
            part.to_parquet(place / f"{name}.parquet", row_group_size=7, index=False)
        else:
            part.to_csv(place / f"{name}.csv", index=False)
    (place / f"_half.{request.param}").write_text("no table")
    (place / "README.txt").write_text("no table")
    return place


def rows_of(folder, **options):
    made = vhat.Rows.parquet if list(folder.glob("*.parquet")) else vhat.Rows.csv
    return made(folder, **{"inputs": INPUTS, "target": "y", **options})


def design(X):
    return np.column_stack([np.ones(len(X)), X])


def line(theta, X):
    return design(X) @ theta


# -- reading -----------------------------------------------------------------------------------
def test_blocks_are_the_rows_of_the_files_in_their_order(folder, table):
    rows = rows_of(folder)
    parts = [rows.read(number) for number in range(len(rows.blocks))]
    assert len(rows) == 40
    assert [len(y) for _, y in parts] == (
        [7, 3, 7, 7, 1, 7, 7, 1] if "parquet" in str(rows.blocks[0]) else [10, 15, 15]
    )
    for X, y in (rows.load(), [np.concatenate(part) for part in zip(*parts, strict=True)]):
        np.testing.assert_array_equal(X, table[INPUTS])
        np.testing.assert_array_equal(y, table["y"])


def test_names_without_a_list_make_vectors_and_lists_make_columns(folder, table):
    x, y = rows_of(folder, inputs="b", target=["z", "y"]).load()
    np.testing.assert_array_equal(x, table["b"])
    np.testing.assert_array_equal(y, table[["z", "y"]])
    assert rows_of(folder, target=None).load()[1] is None


def test_rows_survive_pickling_and_hold_no_row(folder):
    rows = rows_of(folder)
    sent = pickle.dumps(rows)
    assert pickle.loads(sent) == rows
    assert len(sent) < 2000
    np.testing.assert_array_equal(pickle.loads(sent).read(1)[0], rows.read(1)[0])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"inputs": ["a", "c"]}, r"has no column 'c', which inputs= or target= name"),
        ({"inputs": []}, r"inputs=\[\] names no column"),
        ({"target": "b"}, r"column 'b' is named in inputs= and in target="),
    ],
)
def test_columns_that_are_not_there_are_refused_when_rows_are_made(folder, options, told):
    with pytest.raises(vhat.InputError, match=told):
        rows_of(folder, **options)


def test_cells_that_are_no_numbers_are_refused_by_file_and_row(folder):
    rows = rows_of(folder, inputs=["a", "name"])
    first_of_b = next(number for number, block in enumerate(rows.blocks) if "b." in block.file.rsplit("/", 1)[-1])
    with pytest.raises(vhat.InputError, match=r"b\.(parquet, row 1|csv, line 2): column 'name' holds 'text'"):
        rows.read(first_of_b)


def test_places_without_tables_are_refused(tmp_path):
    with pytest.raises(vhat.InputError, match="there is no file or directory"):
        vhat.Rows.parquet(tmp_path / "nothing", inputs="a")
    with pytest.raises(vhat.InputError, match=r"has no files that end in \.parquet or \.pq"):
        vhat.Rows.parquet(tmp_path, inputs="a")


def test_a_file_that_has_changed_is_refused(tmp_path, table):
    table.to_parquet(tmp_path / "a.parquet")
    rows = vhat.Rows.parquet(tmp_path / "a.parquet", inputs=INPUTS, target="y")
    table[:20].to_parquet(tmp_path / "a.parquet")
    with pytest.raises(vhat.InputError, match="had 40 rows in this block and has 20 now"):
        rows.read(0)


# -- front ends --------------------------------------------------------------------------------
def test_numpy_models_give_the_numbers_of_arrays(folder, table):
    X, y = table[INPUTS].to_numpy(), table["y"].to_numpy()
    by_arrays = vhat.from_numpy(line, np.zeros(3), X, y, jac=design).polish()
    by_files = vhat.from_numpy(line, np.zeros(3), rows_of(folder), jac=design).polish()
    band, same = by_arrays.interval(X), by_files.interval(rows_of(folder, target=None))
    np.testing.assert_array_equal(band.lower, same.lower)
    # the textbook's interval of a regression, by the normal equations
    A = np.linalg.inv(design(X).T @ design(X))
    s2 = np.sum((y - line(A @ design(X).T @ y, X)) ** 2) / 37
    np.testing.assert_allclose(same.standard_error**2, s2 * np.einsum("ij,jk,ik->i", design(X), A, design(X)))


def test_jax_models_give_the_numbers_of_arrays(folder, table):
    pytest.importorskip("jax")
    params = {"w": np.array([1.0, -2.0]), "b": 0.0}

    def predict(q, x):
        return x @ q["w"] + q["b"]

    by_files = vhat.from_jax(predict, params, rows_of(folder), weight_decay=1e-3)
    by_arrays = vhat.from_jax(predict, params, table[INPUTS].to_numpy(), table["y"].to_numpy(), weight_decay=1e-3)
    np.testing.assert_array_equal(by_files.problem.gradient(), by_arrays.problem.gradient())


@pytest.mark.parametrize("parameters", ["all", "last"])
def test_torch_modules_give_the_numbers_of_arrays(folder, table, parameters):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1), torch.nn.Flatten(0)
    ).eval()
    X, y = table[INPUTS].to_numpy(), table["y"].to_numpy()
    by_files = vhat.from_torch(module, rows_of(folder), weight_decay=0.1, parameters=parameters)
    by_arrays = vhat.from_torch(module, X, y, weight_decay=0.1, parameters=parameters)
    np.testing.assert_allclose(by_files.problem.gradient(), by_arrays.problem.gradient(), rtol=1e-12)
    assert (by_files.problem.source is None) == (parameters == "last")


def test_a_last_layer_never_has_all_rows_in_memory(folder, table, monkeypatch):
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(
        torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1), torch.nn.Flatten(0)
    ).eval()

    def refused(*_):
        raise AssertionError("all rows were loaded")

    monkeypatch.setattr(vhat.Rows, "load", refused)
    fitted = vhat.from_torch(module, rows_of(folder), weight_decay=0.1, parameters="last").polish()
    assert fitted.problem.n == 40


def test_validation_and_calibration_rows_may_be_files(folder, table):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(30, 2))
    y = X[:, 0] - 2 * X[:, 1] + 0.1 * rng.normal(size=30)
    fitted = vhat.from_numpy(line, np.zeros(3), X, y, jac=design).polish()
    held = table[INPUTS].to_numpy(), table["y"].to_numpy()
    by_files, by_arrays = fitted.calibrate(rows_of(folder)), fitted.calibrate(*held)
    np.testing.assert_array_equal(by_files.interval(X).lower, by_arrays.interval(X).lower)
    noise = [fitted.with_validation(*rows).interval(X).standard_error for rows in ((rows_of(folder),), held)]
    np.testing.assert_array_equal(*noise)


def test_rows_without_responses_are_refused_with_the_call_that_works(folder, table):
    with pytest.raises(vhat.InputError, match=r"make them with target=, then from_numpy\(predict, theta, rows\)"):
        vhat.from_numpy(line, np.zeros(3), rows_of(folder, target=None), jac=design)
    with pytest.raises(vhat.InputError, match=r"leave y out: from_numpy\(predict, theta, rows\)"):
        vhat.from_numpy(line, np.zeros(3), rows_of(folder), table["y"], jac=design)
    with pytest.raises(vhat.InputError, match="y"):
        vhat.from_numpy(line, np.zeros(3), table[INPUTS], jac=design)


def test_rows_that_do_not_fit_are_refused_before_they_are_read(folder, monkeypatch):
    monkeypatch.setattr(vhat.Rows, "read", lambda *_: pytest.fail("rows were read"))
    with pytest.raises(vhat.MemoryBudgetError, match=r"40 rows of 3 columns take up to 2\.88e-06 GB"):
        vhat.from_numpy(line, np.zeros(3), rows_of(folder), jac=design, memory=2000)
