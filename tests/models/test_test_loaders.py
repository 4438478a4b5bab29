"""DataLoaders and Datasets in the place of test, validation or calibration rows."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import data as loading

import vhat
from tests.models.torch_cases import Codes, data, mlp, seeded
from vhat.errors import InputError

X, Y = data(20, 3), data(20, 1, seed=1)
NEW, FRESH = data(9, 3, seed=2), data(9, 1, seed=3)


def shuffled(*tensors, **options):
    return loading.DataLoader(loading.TensorDataset(*tensors), batch_size=4, shuffle=True, **options)


@pytest.fixture(scope="module")
def fitted():
    return vhat.from_torch(nn.Linear(3, 1).eval(), X, Y, weight_decay=0.1).polish()


LOADERS = {
    "inputs and responses": lambda: shuffled(NEW, FRESH),
    "inputs alone": lambda: shuffled(NEW),
    "a dataset": lambda: loading.TensorDataset(NEW, FRESH),
    "bare rows": lambda: loading.DataLoader(list(NEW), batch_size=4, shuffle=True),
    "a stream": lambda: loading.DataLoader(Stream(), batch_size=4),
}


class Stream(loading.IterableDataset):
    def __iter__(self):
        return iter(zip(NEW, FRESH, strict=True))


@pytest.mark.parametrize("name", LOADERS)
def test_every_question_takes_a_loader_in_the_order_of_its_dataset(fitted, name):
    loader = LOADERS[name]()
    before = torch.get_rng_state()
    np.testing.assert_array_equal(fitted.predict(loader), fitted.predict(NEW))
    np.testing.assert_array_equal(fitted.weighted_norm(loader).value, fitted.weighted_norm(NEW).value)
    band, expected = fitted.interval(loader), fitted.interval(NEW)
    np.testing.assert_array_equal(band.lower, expected.lower)
    np.testing.assert_array_equal(band.inputs, expected.inputs)
    np.testing.assert_array_equal(fitted.sensitivity(loader), fitted.sensitivity(NEW))
    np.testing.assert_array_equal(fitted.acquire(loader, 3).indices, fitted.acquire(NEW, 3).indices)
    assert fitted.plan(loader).solver == fitted.plan(NEW).solver
    assert torch.equal(torch.get_rng_state(), before)


def test_calibration_and_validation_take_loaders_of_pairs(fitted):
    loader = shuffled(NEW, FRESH)
    found = fitted.calibrate(loader)
    np.testing.assert_array_equal(found.scores, fitted.calibrate(NEW, FRESH).scores)
    np.testing.assert_array_equal(
        found.interval(loader, 0.2).half_width, fitted.calibrate(NEW, FRESH).interval(NEW, 0.2).half_width
    )
    first, second = (fitted.linearised(0.1, validation=rows).interval(NEW) for rows in (loader, (NEW, FRESH)))
    np.testing.assert_array_equal(first.upper, second.upper)


def test_the_loader_is_left_as_it_was(fitted):
    loader = shuffled(NEW, FRESH)
    collate = loader.collate_fn
    fitted.predict(loader)
    assert loader.collate_fn is collate
    assert len(next(iter(loader))) == 2


def test_a_linearised_model_takes_loaders_too(fitted):
    tangent = fitted.linearised(0.1)
    np.testing.assert_array_equal(tangent.interval(shuffled(NEW, FRESH)).lower, tangent.interval(NEW).lower)


class Rows(loading.Dataset):
    def __init__(self, row, n=9):
        self.row, self.n = row, n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return self.row(index)


def test_dicts_and_tuples_are_read_by_the_structure_of_training():
    by_name = vhat.from_torch(seeded(lambda: nn.Linear(3, 1)), {"x": X, "t": Y}, target_key="t", weight_decay=0.1)
    for row in (
        lambda i: {"x": NEW[i], "t": FRESH[i]},
        lambda i: {"x": NEW[i]},
        lambda i: ({"x": NEW[i]}, FRESH[i]),
        lambda i: {"x": NEW[i], "t": FRESH[i], "row": torch.tensor(i)},
    ):
        np.testing.assert_array_equal(by_name.predict(Rows(row)), by_name.predict({"x": NEW}))
    by_name = by_name.polish()
    scores = by_name.calibrate(Rows(lambda i: {"x": NEW[i], "t": FRESH[i]})).scores
    np.testing.assert_array_equal(scores, by_name.calibrate({"x": NEW}, FRESH).scores)

    ids = torch.arange(20) % 5
    several = vhat.from_torch(seeded(Codes), (ids, X[:, :2]), data(20, 2, seed=5), weight_decay=0.1)
    new_ids = torch.arange(9) % 5
    expected = several.predict((new_ids, NEW[:, :2]))
    for row in (
        lambda i: (new_ids[i], NEW[i, :2]),
        lambda i: (new_ids[i], NEW[i, :2], FRESH[i]),
        lambda i: ((new_ids[i], NEW[i, :2]), FRESH[i]),
    ):
        np.testing.assert_array_equal(several.predict(Rows(row)), expected)


@pytest.mark.parametrize("framework", ["numpy", "jax"])
def test_models_of_other_frameworks_take_loaders(framework):
    x, y = X.double().numpy(), Y[:, 0].double().numpy()
    make = vhat.from_numpy if framework == "numpy" else vhat.from_jax
    fitted = make(lambda q, x: x @ q, np.ones(3), x, y, weight_decay=0.1)
    loader = shuffled(NEW.double(), FRESH[:, 0].double())
    np.testing.assert_array_equal(fitted.predict(loader), fitted.predict(NEW.double().numpy()))


def jitter(i):
    return NEW[i] + 0.01 * torch.randn(3), FRESH[i]


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda f: f.predict(shuffled(NEW, FRESH, FRESH)), r"batches of 3 parts; .*let it yield x or \(x, y\)"),
        (lambda f: f.predict(Rows(lambda i: {"x": NEW[i]})), r"dicts with keys \['x'\]; .*one array"),
        (lambda f: f.predict(shuffled(NEW[:, :2])), r"rows of shape \(2,\)"),
        (lambda f: f.predict(shuffled(NEW, drop_last=True)), "drop_last=False"),
        (lambda f: f.predict(Rows(jitter)), "augments at random"),
        (lambda f: f.calibrate(shuffled(NEW)), r"without responses. .*calibrate\(X_cal, y_cal\)"),
        (lambda f: f.calibrate(shuffled(NEW, FRESH), FRESH), r"contains the responses.*calibrate\(X_cal, y_cal\)"),
        (lambda f: f.linearised(validation=shuffled(NEW)), r"without responses. .*validation=\(X, y\)"),
        (lambda f: f.report("r.html", held_out=shuffled(NEW)), r"without responses. .*held_out=\(X, y\)"),
        (lambda f: f.acquire(shuffled(NEW[:, :2])), "pool: "),
    ],
)
def test_what_a_loader_cannot_give_is_said(fitted, ask, words):
    with pytest.raises(InputError, match=words):
        ask(fitted)


def test_dicts_that_are_not_those_of_training_are_refused():
    by_name = vhat.from_torch(seeded(lambda: mlp(3, 2, 1)), {"x": X}, Y, weight_decay=0.1)
    with pytest.raises(InputError, match=r"Of \['a', 'b'\], at most one can be the response"):
        by_name.predict(Rows(lambda i: {"x": NEW[i], "a": FRESH[i], "b": FRESH[i]}))
    with pytest.raises(InputError, match=r"a dict with keys \['x'\]: let it yield such dicts, or \(dict, y\)"):
        by_name.predict(shuffled(NEW))
