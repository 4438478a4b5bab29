"""What polish promises of every guarantee that follows, in the models that are made of a polished one."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import vhat

X = np.linspace(0.0, 4.0, 30)
Y = 2.0 * np.exp(-X) + 0.1 * np.cos(30 * X)
NOISE = 0.1


def curve(q, x):
    return q[0] * np.exp(-q[1] * x)


def given_and_polished(**options):
    given = vhat.from_numpy(curve, [2.2, 1.3], X, Y, weight_decay=1e-3, **options)
    return given, given.polish()


MADE = {
    "polished": lambda polished: polished,
    "the same decay": lambda polished: polished.scale_weight_decay(1.0),
    "another decay": lambda polished: polished.scale_weight_decay(50.0),
    "polished again": lambda polished: polished.scale_weight_decay(50.0).polish(),
    "linearised": lambda polished: polished.linearised(1e-3),
    "linearised again": lambda polished: polished.linearised(1e-3).linearised(1e-2),
    "linearised, another decay": lambda polished: polished.linearised(1e-3).scale_weight_decay(2.0),
    "validation rows": lambda polished: polished.linearised(1e-3).with_validation(X + 0.01, Y),
}


@pytest.mark.parametrize("name", MADE)
def test_guarantee_and_audit_say_how_far_polish_moved_the_predictions(name):
    given, polished = given_and_polished()
    made = MADE[name](polished)
    moved = np.sqrt(np.mean((made.predict(X) - given.predict(X)) ** 2)) / NOISE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vhat.NotMinimumWarning)
        told = made.interval(X[:2], noise=NOISE, curvature="ggn").guarantee
        line = made.audit(noise=NOISE, curvature="ggn")["moved"]
    assert f"{moved:.2g} noise levels (root mean square) from those of the model given" in told
    at_minimum = name in ("polished", "the same decay", "polished again")
    linearised = "linearised" in name or name == "validation rows"
    assert ("the minimum is the one that polish reached" in told) == at_minimum
    assert ("the model linearised is the one that polish reached" in told) == linearised
    assert ("the parameters are those that polish reached" in told) == (name == "another decay")
    np.testing.assert_allclose(line.value, moved, rtol=1e-9)


def test_models_that_were_not_polished_say_nothing_of_it():
    given, _ = given_and_polished()
    tangent = given.linearised(1e-3)
    assert tangent.given is given.scale_weight_decay(2.0).given is None
    assert "polish reached" not in tangent.interval(X[:2], noise=NOISE).guarantee


def test_the_certificate_of_a_minimum_is_not_that_of_another_penalty():
    _, polished = given_and_polished()
    assert polished.polished is not None
    assert polished.scale_weight_decay(50.0).polished is None
    assert polished.linearised(1e-3).polished is None
    assert polished.with_validation(X + 0.01, Y).polished is polished.polished


def test_a_saved_linearisation_remembers_what_was_given(tmp_path):
    _, polished = given_and_polished()
    tangent = polished.linearised(1e-3)
    tangent.save(tmp_path)
    again = vhat.load(tmp_path, model=curve)
    assert again.interval(X[:2], noise=NOISE).guarantee == tangent.interval(X[:2], noise=NOISE).guarantee
    np.testing.assert_array_equal(again.given.fitted_values, polished.given.fitted_values)


def test_validation_errors_off_the_minimum_are_followed_to_it():
    """Under another decay the parameters are not where polish put them: the line makes the step to the minimum."""
    _, polished = given_and_polished(validation=(X + 0.01, Y))
    assert "as polish has found it" in polished.audit(noise=NOISE)["early stopping"].meaning
    moved = polished.scale_weight_decay(50.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vhat.NotMinimumWarning)
        assert "to first order" in moved.audit(noise=NOISE)["early stopping"].meaning
