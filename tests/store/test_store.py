"""A fitted model comes back from disk with the same intervals to the last bit, or is refused in words."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import vhat
from tests.store import cases
from tests.store.cases import CASES, NEW, X, Y, fingerprint
from vhat.fit import Network
from vhat.fitted.construct import assemble
from vhat.store import describe, read, restore, write
from vhat.store.records import describe_factorisation, restore_factorisation

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def fitted():
    """Every case, fitted once."""
    return cache(lambda name: CASES[name].fit())


@pytest.fixture(scope="module")
def expected(fitted):
    """What every case says before it is saved."""
    return cache(lambda name: fingerprint(fitted(name), CASES[name].x))


@pytest.fixture(scope="module")
def saved(fitted, tmp_path_factory):
    """The directory of every case, saved once."""
    root = tmp_path_factory.mktemp("store")

    @cache
    def folder(name):
        fitted(name).save(root / name)
        return root / name

    return folder


@pytest.fixture(scope="module")
def fresh(saved):
    """The fingerprint of every case in a process that has never seen the fit."""
    code = (
        "import json, sys, vhat\n"
        "from tests.conftest import jax\n"
        "from tests.store.cases import CASES, fingerprint\n"
        "load = lambda name: vhat.load(json.loads(sys.argv[1])[name], **CASES[name].options())\n"
        "print(json.dumps({name: fingerprint(load(name), case.x) for name, case in CASES.items()}))"
    )
    folders = json.dumps({name: str(saved(name)) for name in CASES})
    command = [sys.executable, "-W", "error", "-c", code, folders]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


# -- there and back --------------------------------------------------------------------------------
@pytest.mark.parametrize("name", CASES)
def test_every_bit_of_bands_and_audit_comes_back_in_a_fresh_process(expected, fresh, name):
    differing = [key for key, value in expected(name).items() if fresh[name].get(key) != value]
    assert differing == []
    assert fresh[name].keys() == expected(name).keys()


def test_the_cases_are_not_all_alike(fitted, expected):
    """What the comparison above rests on: polished and not, moved and not, exact and Gauss-Newton."""
    assert fitted("own network").polished is not None
    assert fitted("far from a minimum").polished is None
    rough = expected("far from a minimum")
    assert rough["mean curvature"] == "'ggn'"
    assert rough["stationarity verdict"] == "'fails'"
    band = fitted("own network").interval(NEW)
    assert band.curvature == "hessian"
    assert "model given" in band.guarantee


def test_parameters_come_back_in_their_own_structure(fitted, saved):
    again = vhat.load(saved("jax function"), model=cases.two_outputs).params
    before = fitted("jax function").params
    assert jax.tree.structure(again) == jax.tree.structure(before)
    assert all(np.array_equal(*pair) for pair in zip(jax.tree.leaves(again), jax.tree.leaves(before), strict=True))
    assert isinstance(again["layers"], tuple)
    assert again["codes"].dtype == np.int64


def test_what_was_given_before_polish_comes_back(fitted, saved):
    before, again = fitted("own network"), vhat.load(saved("own network"))
    with again.problem.scope():
        assert np.array_equal(again.given.fitted_values, before.given.fitted_values)
        assert not np.array_equal(again.given.fitted_values, again.problem.fitted_values)
    assert again.polished.problem is again.problem


def test_a_loaded_model_can_be_polished_saved_and_loaded_again(saved, tmp_path):
    once = vhat.load(saved("curve_fit"), model=cases.surface)
    once.polish().save(tmp_path / "again")
    twice = vhat.load(tmp_path / "again", model=cases.surface)
    x = CASES["curve_fit"].x
    assert np.allclose(twice.interval(x).upper, once.interval(x).upper, rtol=1e-9)


def test_named_columns_are_remembered(saved):
    again = vhat.load(saved("far from a minimum"))
    turned = pd.DataFrame(X[:3, ::-1], columns=["right", "left"])
    assert np.array_equal(again.predict(turned), again.predict(X[:3]))
    with pytest.raises(vhat.InputError, match="lacks the columns"):
        again.predict(turned.rename(columns={"left": "up"}))


def test_saving_changes_nothing_in_the_model(fitted, expected, tmp_path):
    before = expected("numpy")
    fitted("numpy").save(tmp_path / "m")
    assert fingerprint(fitted("numpy"), CASES["numpy"].x) == before


def test_saving_over_an_earlier_model_replaces_it(fitted, tmp_path):
    fitted("numpy").save(tmp_path)
    fitted("own network").save(tmp_path)
    assert vhat.load(tmp_path).problem.p == fitted("own network").problem.p


def test_a_document_within_another_document_is_a_model_too(fitted, tmp_path):
    """What an estimator does: its scaler and its columns beside the fitted model."""
    write(
        tmp_path,
        "estimator",
        {"mean": X.mean(axis=0), "columns": ("a", "b"), "fitted": describe(fitted("own network"))},
    )
    found = read(tmp_path, "estimator")
    assert found["columns"] == ("a", "b")
    assert np.array_equal(found["mean"], X.mean(axis=0))
    again = assemble(restore(found["fitted"]))
    assert np.array_equal(again.interval(NEW).upper, fitted("own network").interval(NEW).upper)


def test_the_budget_is_the_saved_one_unless_less_is_free_or_another_is_given(fitted, tmp_path, monkeypatch):
    vhat.from_numpy(cases.saturating, [2.0, 1.3], cases.TIMES, cases.LEVELS, memory=5e7).save(tmp_path)
    assert vhat.load(tmp_path, model=cases.saturating).problem.memory == 5e7
    assert vhat.load(tmp_path, model=cases.saturating, memory=6e7).problem.memory == 6e7
    monkeypatch.setattr("vhat.store.match_model.check_memory", lambda memory: 10**6)
    assert vhat.load(tmp_path, model=cases.saturating).problem.memory == 10**6


def test_a_frozen_noise_shape_is_kept_to_the_last_bit(fitted, saved):
    again = vhat.load(saved("curve_fit"), model=cases.surface)
    assert np.ptp(again.workspace.shape) > 0
    assert again.workspace.shape.tobytes() == fitted("curve_fit").workspace.shape.tobytes()


# -- the user's own code ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("jax function", r"model=predict, the function predict\(params, X\)"),
        ("equinox", r"model=\(predict, params\)"),
        ("torch module", r"model=module, a torch\.nn\.Module of class Normed"),
        ("numpy with jac", r"model=\(predict, jac\)"),
        ("curve_fit", r"model=f, the function f\(x, \*params\)"),
    ],
)
def test_code_that_was_not_saved_is_asked_for(saved, name, said):
    with pytest.raises(vhat.StoreError, match=f"the model is your own code, which is not saved. Give load.*{said}"):
        vhat.load(saved(name))


OTHERS = {
    "jax function": lambda: lambda params, rows: cases.two_outputs(params, rows) * (1 + 1e-6),
    "equinox": lambda: (lambda model, rows: cases.each_row(model, rows + 1e-4), cases.equinox_model(0)),
    "numpy": lambda: lambda theta, x: theta[0] * np.tanh(theta[1] * x),
    "curve_fit": lambda: lambda x, a, b, c: a * np.exp(-b * x[1]) + c * x[0],
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_function_of_the_same_shapes_is_refused(saved, name):
    with pytest.raises(vhat.StoreError, match=r"the function given is not the one that was saved.*predicts otherwise"):
        vhat.load(saved(name), model=OTHERS[name]())


def test_a_module_that_computes_otherwise_with_the_same_tensors_is_refused(saved):
    class Otherwise(cases.Normed):
        def forward(self, x):
            return self.head(torch.sigmoid(self.norm(self.body(x)) + self.shift))[:, 0]

    with pytest.raises(vhat.StoreError, match="the module given is not the one that was saved"):
        vhat.load(saved("torch module"), model=Otherwise().eval())


def thawed():
    module = cases.fresh_module()
    module.body.weight.requires_grad_(True)
    return module


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: cases.fresh_module(width=7), r"missing norm\.weight \(4,\).*unknown norm\.weight \(7,\)"),
        (thawed, r"unknown body\.weight \(4, 2\).*freeze the same parameters"),
        (cases.Normed, r"training mode.*call module\.eval\(\) first"),
        (lambda: cases.saturating, r"model is a function; give a torch\.nn\.Module of class Normed"),
    ],
)
def test_a_module_of_another_structure_or_mode_is_refused(saved, make, said):
    with pytest.raises(vhat.StoreError, match=said):
        vhat.load(saved("torch module"), model=make())


def test_the_module_given_to_load_is_not_changed(saved):
    module = cases.fresh_module()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    loaded = vhat.load(saved("torch module"), model=module)
    loaded.interval(CASES["torch module"].x)
    for name, value in module.state_dict().items():
        assert value.dtype == before[name].dtype
        assert torch.equal(value, before[name])
    loaded.write_to(module)
    assert not torch.equal(module.head.weight, before["head.weight"])


@pytest.mark.parametrize(
    ("name", "model", "said"),
    [
        ("jax function", lambda p, rows: rows["x"] @ p["no such layer"], "cannot take the place.*no such layer"),
        ("jax function", lambda p, rows: rows["x"] @ p["layers"][1], "cannot take the place"),
        ("jax function", (cases.two_outputs, {}), "Give predict alone"),
        ("jax function", 7, "cannot take the place.*must be a function"),
        ("equinox", cases.each_row, r"Give model=\(predict, params\)"),
        ("numpy with jac", cases.saturating, r"saved with predict, jac. Give model=\(predict, jac\)"),
        ("numpy", (cases.saturating, cases.saturating_slopes), r"saved with predict. Give model=predict"),
        ("curve_fit", 3.0, "model is a float"),
        ("own network", Network((2, 7, 1)), "Leave model= out"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_in_words(saved, name, model, said):
    with pytest.raises(vhat.StoreError, match=said):
        vhat.load(saved(name), model=model)


def test_a_network_of_another_size_is_no_template(saved):
    import equinox as eqx

    wide = eqx.nn.MLP(2, "scalar", 6, 1, activation=jnp.tanh, key=jax.random.key(0))
    with pytest.raises(vhat.StoreError, match=r"do not have the structure.*\(6, 2\) \(given\)"):
        vhat.load(saved("equinox"), model=(cases.each_row, wide))


def test_a_loss_of_ones_own_is_asked_for_and_compared(saved):
    with pytest.raises(vhat.StoreError, match="the loss is your own code"):
        vhat.load(saved("jax loss"), model=cases.straight)
    with pytest.raises(vhat.StoreError, match="the loss given is not the one that was saved"):
        vhat.load(saved("jax loss"), model=cases.straight, loss=lambda f, y: 0.5 * jnp.sum((f - y) ** 2))
    with pytest.raises(vhat.StoreError, match="Leave loss= out"):
        vhat.load(saved("own network"), loss=cases.log_cosh)


def test_the_equal_network_may_be_given(saved, fitted):
    network = fitted("own network").problem.autodiff.model.predict.value
    again = vhat.load(saved("own network"), model=Network(network.widths, network.activation, network.initial))
    assert again.problem.p == fitted("own network").problem.p


# -- data by reference -----------------------------------------------------------------------------
def test_a_reference_holds_no_row_and_needs_the_same_data(fitted, expected, tmp_path):
    fitted("own network").save(tmp_path, data="reference")
    content = (tmp_path / "v0001" / "arrays.safetensors").read_bytes()
    assert not any(row.tobytes() in content for row in X)
    assert not any(value.tobytes() in content for value in Y)
    again = vhat.load(tmp_path, data=(X.tolist(), Y))
    assert fingerprint(again, NEW) == expected("own network")


def nudged(array):
    other = array.copy()
    other[7] = np.nextafter(other[7], np.inf)
    return other


@pytest.mark.parametrize(
    ("data", "error", "said"),
    [
        (None, vhat.StoreError, r"only a reference.*data=\(X, y\)"),
        (X, vhat.InputError, "the pair"),
        ((nudged(X), Y), vhat.StoreError, "the X given is not the one"),
        ((X, nudged(Y)), vhat.StoreError, "the y given is not the one"),
        ((X[::-1], Y[::-1]), vhat.StoreError, "the X given is not the one"),
        ((X[:30], Y[:30]), vhat.StoreError, r"the X given has shape \(30, 2\); the model was fitted to \(36, 2\)"),
        ((X[:, :1], Y), vhat.StoreError, "the model or the data given cannot take the place"),
    ],
)
def test_other_data_than_those_of_the_reference_are_refused(fitted, tmp_path, data, error, said):
    fitted("own network").save(tmp_path, data="reference")
    with pytest.raises(error, match=said):
        vhat.load(tmp_path, data=data)


@pytest.mark.parametrize("name", ["torch module", "numpy frame", "curve_fit", "jax function"])
def test_every_front_end_takes_its_data_back(fitted, expected, tmp_path, name):
    problem = fitted(name).problem
    fitted(name).save(tmp_path, data="reference")
    y = problem.targets[:, 0] if problem.squeeze else problem.targets
    given = {"torch module": X.astype(np.float32), "curve_fit": cases.scipy_rows()}.get(name, problem.X)
    again = vhat.load(tmp_path, **CASES[name].options(), data=(given, y))
    assert fingerprint(again, CASES[name].x) == expected(name)


def test_a_loader_is_a_reference_too(fitted, tmp_path):
    rows, y = torch.as_tensor(X, dtype=torch.float32), torch.as_tensor(Y)
    loader = DataLoader(TensorDataset(rows, y), batch_size=8, shuffle=True)
    fitted("torch module").save(tmp_path, data="reference")
    again = vhat.load(tmp_path, model=cases.fresh_module(), data=(loader, None))
    x = CASES["torch module"].x
    assert np.array_equal(again.interval(x).upper, fitted("torch module").interval(x).upper)


def test_data_are_not_asked_for_twice(saved):
    with pytest.raises(vhat.InputError, match="Leave data= out"):
        vhat.load(saved("own network"), data=(X, Y))


def test_options_are_checked(fitted, tmp_path):
    with pytest.raises(vhat.InputError, match="data='nothing' is not known"):
        fitted("numpy").save(tmp_path / "m", data="nothing")
    assert not (tmp_path / "m").exists()


# -- factorisations --------------------------------------------------------------------------------
def test_a_dense_matrix_is_kept_and_not_made_again(fitted, expected, tmp_path, monkeypatch):
    model = fitted("jax function")
    x = CASES["jax function"].x
    before = expected("jax function")
    model.save(tmp_path, factorisation=True)
    again = vhat.load(tmp_path, model=cases.two_outputs)
    matrix = again.workspace.kept(("matrix", "hessian"))
    assert matrix.tobytes() == model.workspace.kept(("matrix", "hessian")).tobytes()

    def refuse(*_):
        raise AssertionError("made again")

    monkeypatch.setattr("vhat.linalg.curvature.assemble", refuse)
    assert np.array_equal(again.interval(x, noise="equal").upper, model.interval(x, noise="equal").upper)
    monkeypatch.undo()
    assert fingerprint(again, x) == before


@pytest.fixture(scope="module")
def wide():
    """More parameters than the plan allows a dense matrix, biases without decay: the kernel has a border."""
    network = Network((2, 900, 1), "tanh")
    params = network.init(0)
    decay = [{"w": 1e-2, "b": 1e-2}, {"w": 1e-2, "b": 0.0}]
    return vhat.from_jax(network, params, X, Y, weight_decay=tuple(decay))


def test_a_kernel_is_kept_and_not_made_again(wide, tmp_path, monkeypatch):
    ask = {"curvature": "ggn", "noise": 0.1}
    with pytest.warns(vhat.NotMinimumWarning):
        before = wide.interval(NEW, **ask)
    assert before.solver == "dual"
    wide.save(tmp_path, factorisation=True)
    again = vhat.load(tmp_path)
    kernel, kept = wide.workspace.kept("kernel"), again.workspace.kept("kernel")
    assert kernel.border.size
    for name in ("factor", "border", "corner"):
        now, was = getattr(kept, name), getattr(kernel, name)
        assert now.tobytes() == was.tobytes()
        assert now.flags.f_contiguous == was.flags.f_contiguous

    def refuse(*_):
        raise AssertionError("made again")

    monkeypatch.setattr("vhat.linalg.workspace.make_kernel", refuse)
    with pytest.warns(vhat.NotMinimumWarning):
        after = again.interval(NEW, **ask)
    assert np.array_equal(after.upper, before.upper)
    assert after.guarantee == before.guarantee


def test_a_kernel_saved_with_a_name_is_still_read(wide):
    """As it was saved until kernels lost their name."""
    with wide.problem.scope():
        wide.weighted_norm(NEW, curvature="ggn")
        document = describe_factorisation(wide.workspace)
        document["kernel"]["name"] = "dual"
        again = vhat.FittedModel(wide.problem)
        restore_factorisation(document, again.workspace)
    factor = wide.workspace.kept("kernel").factor
    np.testing.assert_array_equal(again.workspace.kept("kernel").factor, factor)


def test_a_factorisation_that_is_not_there_is_said(tmp_path):
    fresh = vhat.from_jax(cases.straight, np.ones(2), X, Y, weight_decay=0.1)
    with pytest.warns(vhat.VhatWarning, match="keeps nothing.*Ask for an interval first"):
        fresh.save(tmp_path, factorisation=True)
    vhat.load(tmp_path, model=cases.straight)


# -- what cannot be kept ---------------------------------------------------------------------------
def test_columns_that_cannot_be_kept_are_named(tmp_path):
    frame = pd.DataFrame({"t": cases.TIMES, "odd": [{1}, (2,)] * 15})
    model = vhat.from_numpy(lambda q, f: q[0] * f["t"].to_numpy(), [1.0], frame, cases.LEVELS)
    with pytest.raises(vhat.StoreError, match="column 'odd' has dtype object"):
        model.save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_wrong_directory_is_a_sentence_before_anything_is_written(fitted, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(vhat.StoreError, match=r"it holds thesis\.tex"):
        fitted("numpy").save(tmp_path)
    with pytest.raises(vhat.StoreError, match="holds no model saved by vhat"):
        vhat.load(tmp_path)
    assert [found.name for found in tmp_path.iterdir()] == ["thesis.tex"]


def test_loading_a_numpy_model_imports_neither_jax_nor_torch(saved):
    code = (
        "import sys, vhat\n"
        "import numpy as np\n"
        "f = lambda theta, x: theta[0] * (1 - np.exp(-theta[1] * x))\n"
        "vhat.load(sys.argv[1], model=f).interval([0.5])\n"
        "print([m for m in ('torch', 'jax') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(saved("numpy"))]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_nothing_of_a_saved_model_is_a_pickle(saved):
    for name in CASES:
        files = [path for path in saved(name).rglob("*") if path.is_file()]
        assert {path.name for path in files} == {"vhat.json", "manifest.json", "arrays.safetensors"}
        for path in files:
            if path.suffix == ".json":
                json.loads(path.read_text())
