"""Values at the edge of arithmetic, arrays without numbers, and objects that lie: a typed error, or the closed form."""

from __future__ import annotations

import warnings

import jax
import numpy as np
import pytest
import torch

import vhat
from tests.hostile.ridge import (
    FRONT_ENDS,
    LAM,
    POINTS,
    THETA,
    X,
    Y,
    fitted,
    from_jax,
    from_numpy,
    from_torch,
    limits,
    linear,
)

HIDDEN = np.ma.masked_array(Y, mask=Y > 1)
ROWS = np.ma.masked_array(X, mask=X > 1)


@pytest.fixture(params=list(FRONT_ENDS))
def door(request):
    return FRONT_ENDS[request.param]


class Liar:
    """A sequence whose length is not what it says."""

    def __init__(self, array, length):
        self.array = array
        self.length = length

    def __len__(self):
        if self.length is None:
            raise RuntimeError("no length")
        return self.length

    def __getitem__(self, at):
        return self.array[at]


@pytest.mark.parametrize("what", ["X", "y"])
@pytest.mark.parametrize("length", [1000, 3, -1, None])
def test_a_sequence_that_lies_about_its_length_is_refused_or_read_to_its_end(what, length):
    given = {"X": X, "y": Y}[what]
    try:
        band = from_numpy(**{what: Liar(given, length)}).interval(POINTS)
    except vhat.InputError as error:
        assert len(str(error).split()) > 3  # noqa: PT017
    else:
        np.testing.assert_allclose(np.stack([band.lower, band.upper]), limits(X, Y, LAM, POINTS), rtol=1e-9)


META = torch.zeros(24, 2, device="meta")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch means to give them up
    COARSE = torch.quantize_per_tensor(torch.tensor(X, dtype=torch.float32), 0.1, 0, torch.qint8)


@pytest.mark.parametrize("tensor", [META, COARSE, torch.tensor(X).to_sparse()], ids=["meta", "quantised", "sparse"])
def test_tensors_without_an_array_of_numbers_are_refused(tensor):
    calls = (
        lambda: from_torch(X=tensor),
        lambda: from_torch(y=tensor[:, 0]),
        lambda: from_torch(sample_weight=tensor[:, 0]),
        lambda: from_numpy(X=tensor),
        lambda: fitted("torch").interval(tensor),
        lambda: vhat.NetworkRegressor((), weight_decay=0.1).fit(tensor, Y),
    )
    for call in calls:
        with pytest.raises(vhat.InputError):
            call()


HUGE = 10**400


@pytest.mark.parametrize(
    "call",
    [
        lambda: from_numpy(y=[HUGE] * 24),
        lambda: from_numpy(weight_decay=HUGE),
        lambda: fitted("numpy").interval(POINTS, HUGE),
        lambda: fitted("numpy").interval(POINTS, noise=HUGE),
        lambda: fitted("numpy").interval([[HUGE, 1]]),
        lambda: fitted("numpy").scale_weight_decay(HUGE),
        lambda: vhat.NetworkRegressor((), weight_decay=HUGE).fit(X, Y),
        lambda: vhat.NetworkRegressor((), weight_decay=0.1).fit([[HUGE, 1]] * 24, Y),
        lambda: vhat.NetworkRegressor((), weight_decay=0.1).fit(X, [HUGE] * 24),
    ],
)
def test_a_whole_number_that_no_float_holds_is_refused(call):
    with pytest.raises(vhat.InputError):
        call()


def test_a_budget_beyond_any_memory_is_any_memory():
    band = from_numpy(memory=HUGE).interval(POINTS)
    np.testing.assert_allclose(band.lower, limits(X, Y, LAM, POINTS)[0], rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sample_weight": np.full(24, 1e308)}, "sample_weight has 1e\\+308"),
        ({"sample_weight": [1e308] + [1] * 23}, "sample_weight has 1e\\+308"),
        ({"sample_weight": np.full(24, 1e-320)}, "whose square is zero"),
        ({"weight_decay": 1e308}, "weight_decay.* has 1e\\+308"),
        ({"y": Y * 1e200, "theta": THETA * 1e200}, "y has values beyond"),
    ],
)
def test_numbers_whose_squares_are_none_are_refused(door, options, words):
    with pytest.raises(vhat.InputError, match=words):
        door(**options)


def test_inputs_whose_products_overflow_are_refused_and_not_a_raw_error():
    with pytest.raises(vhat.NotPositiveDefinite, match="not numbers"), np.errstate(all="ignore"):
        from_numpy(X=X * 1e200, theta=THETA / 1e200).interval(POINTS)


@pytest.mark.parametrize("level", [1e308, 1e100, 1e-320, 1e-100])
def test_noise_beyond_double_precision_is_refused(level):
    with pytest.raises(vhat.InputError, match=r"noise=.* beyond what can be squared"):
        fitted("numpy").interval(POINTS, noise=level)
    with pytest.raises(vhat.InputError, match=r"observation_noise=.* beyond what can be squared"):
        fitted("numpy").interval(POINTS, target="observation", observation_noise=level)


@pytest.mark.parametrize("level", [1e70, 1e-70])
@pytest.mark.filterwarnings("ignore::vhat.NotMinimumWarning")
def test_noise_within_double_precision_scales_the_closed_form(level):
    unit = fitted("numpy").interval(POINTS, noise=1.0).half_width
    np.testing.assert_allclose(fitted("numpy").interval(POINTS, noise=level).half_width, level * unit, rtol=1e-9)


@pytest.mark.parametrize(
    "call",
    [
        lambda net: net().fit(ROWS, Y),
        lambda net: net().fit(X, HIDDEN),
        lambda net: net().fit(X, Y, sample_weight=np.ma.masked_array(np.ones(24), mask=Y > 1)),
        lambda net: net().fit(X, Y).predict(ROWS),
        lambda net: net().fit(X, Y).predict_interval(ROWS),
        lambda net: net().fit(X, Y).calibrate(ROWS + 1, Y),
        lambda net: net().fit(X, Y).calibrate(X + 1, HIDDEN),
    ],
)
def test_masks_are_not_dropped_by_the_estimator(call):
    with pytest.raises(vhat.InputError, match="is masked in row"):
        call(lambda: vhat.NetworkRegressor((), weight_decay=0.1))


def test_a_model_that_masks_its_predictions_is_refused():
    def hiding(theta, Z):
        return np.ma.masked_array(linear(theta, Z), mask=Z[:, 0] > 1)

    with pytest.raises(vhat.ModelError, match="NaN or infinite"):
        vhat.from_numpy(hiding, THETA, X, Y, weight_decay=LAM)


def test_a_functional_that_masks_is_refused():
    with pytest.raises(vhat.VhatError):
        fitted("numpy").functional(lambda q: np.ma.masked_array(q, mask=[False, True]))


@pytest.mark.parametrize("option", ["solver", "curvature", "bound", "target", "simultaneous", "tail"])
def test_an_array_in_place_of_an_option_is_refused(option):
    with pytest.raises(vhat.InputError, match=option):
        fitted("numpy").interval(POINTS, **{option: np.arange(3)})


@pytest.mark.parametrize("name", ["hidden_layer_sizes", "activation", "recipe"])
@pytest.mark.parametrize("value", [None, np.zeros((2, 2)), object()])
def test_options_of_the_estimator_of_another_type_are_refused(name, value):
    with pytest.raises(vhat.InputError, match=name):
        vhat.NetworkRegressor(weight_decay=0.1).set_params(**{name: value}).fit(X, Y)


@pytest.mark.parametrize(
    "call",
    [
        lambda z: fitted("jax").interval(POINTS + z).lower,
        lambda z: from_jax(theta=THETA + z).interval(POINTS).lower,
        lambda z: from_jax(X=X + z).interval(POINTS).lower,
        lambda z: from_jax(y=Y + z).interval(POINTS).lower,
        lambda z: fitted("jax").interval(POINTS, noise=z).lower,
        lambda z: fitted("jax").audit(),
    ],
)
def test_calls_inside_jit_are_refused(call):
    with pytest.raises(vhat.InputError, match="inside a function that JAX traces"):
        jax.jit(call)(0.0)


def test_tracers_of_grad_and_vmap_are_refused():
    def lower(z):
        return from_jax(theta=THETA + z).interval(POINTS).lower[0]

    with pytest.raises(vhat.InputError, match="JAX traces"):
        jax.grad(lower)(1.0)
    with pytest.raises(vhat.InputError, match="JAX traces"):
        jax.vmap(lower)(np.ones(2))


def test_calls_of_numpy_models_inside_jit_are_answered_unless_a_tracer_is_given():
    found = []
    jax.jit(lambda z: (found.append(fitted("numpy").interval(POINTS).lower), z)[1])(0.0)
    np.testing.assert_allclose(found[0], limits(X, Y, LAM, POINTS)[0], rtol=1e-9)
    with pytest.raises(vhat.InputError):
        jax.jit(lambda z: fitted("numpy").interval(z).lower)(POINTS)


@pytest.mark.parametrize("place", [None, "a\0b", 3, b"model"])
def test_places_that_are_none_are_refused(place):
    for call in (fitted("numpy").save, vhat.load, vhat.NetworkRegressor.load):
        with pytest.raises(vhat.StoreError):
            call(place)


@pytest.mark.parametrize("place", [None, "a\0b"])
def test_a_report_to_no_place_is_refused(place):
    with pytest.raises(vhat.InputError, match="not the name of a file"):
        fitted("numpy").report(place)
