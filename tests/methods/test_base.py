"""What the base classes do for a method that only computes limits for the mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import vhat
from tests.methods.cases import data, ridge
from tests.methods.table import METHODS, POINTS
from vhat import methods
from vhat.methods.base import Answer, BaseFitted, BaseMethod, Claim, FittedToModel, Limits, Training

CLAIM = Claim(name="fixed", covers="the mean", by="decree", assumed=("nothing else",), response="a new response")


@dataclass(frozen=True)
class Fixed(BaseMethod):
    """Limits of half width one about the fit, and whatever else an answer has."""

    noise: float | None = 2.0
    extra: dict[str, Any] = field(default_factory=dict)

    def _fit(self, data):
        return FittedFixed(self, data.fit_once())


@dataclass(frozen=True, eq=False)
class FittedFixed(FittedToModel):
    options: Fixed
    fitted: vhat.FittedModel

    def _answer(self, asked):
        center = self.fitted.predict(asked.x)
        return Answer(CLAIM, center, Limits(center - 1, center + 1), **self.options.extra)


class Noiseless(BaseFitted):
    def _answer(self, asked):
        center = np.zeros(len(asked.x))
        return Answer(CLAIM, center, Limits(center - 1, center + 1))


def ask(target, **extra):
    X, y = data()
    return Fixed(extra=extra).fit(ridge(0.1), X, y).interval(POINTS, 0.1, target=target)


def test_limits_for_the_mean_are_kept_and_those_of_a_new_response_are_widened_in_quadrature():
    mean, new = ask("mean"), ask("observation")
    np.testing.assert_allclose(mean.half_width, 1.0, rtol=1e-12)
    assert np.isnan(mean.noise)
    np.testing.assert_allclose(new.half_width, np.hypot(1.0, 2.0 * 1.6448536269514722), rtol=1e-12)
    assert new.noise == 2.0
    assert "a new response" in new.guarantee
    assert "Gaussian noise in a new response, given" in new.guarantee


def test_a_share_that_bounds_a_bias_is_added_as_it_is():
    quantile = 2.0 * 1.6448536269514722
    np.testing.assert_allclose(ask("observation", bias=0.4).half_width, 0.4 + np.hypot(0.6, quantile), rtol=1e-12)


def test_limits_of_a_new_response_are_not_widened_again():
    np.testing.assert_allclose(ask("observation", of="observation").half_width, 1.0, rtol=1e-12)


def test_the_sentence_follows_the_answer():
    assert "at each point taken alone, for the mean, by decree" in ask("mean").guarantee
    assert "at all points at once, for the mean" in ask("mean", simultaneous=True).guarantee
    assert "at each point taken alone" in ask("observation", simultaneous=True).guarantee
    unknown = ask("mean", delta=np.nan)
    assert np.isnan(unknown.delta)
    assert unknown.guarantee.startswith("No stated level")
    assert ask("mean", guarantee="My own.").guarantee == "My own."


def test_questions_are_checked_before_a_method_sees_them():
    fit = Noiseless()
    with pytest.raises(vhat.InputError, match="target='median'"):
        fit.interval(POINTS, target="median")
    with pytest.raises(vhat.InputError, match="delta"):
        fit.interval(POINTS, 1.5)
    with pytest.raises(NotImplementedError, match="Noiseless has to give the noise"):
        fit.interval(POINTS, target="observation")


def test_parts_of_a_split_share_no_row_and_are_drawn_by_the_seed():
    X, y = data()
    training = Training(ridge(0.1), X, y, 7)
    parts = training.split(0.4, stream=1, method="It", parts="parts")
    assert (len(parts.first), len(parts.rest)) == (12, 18)
    np.testing.assert_array_equal(parts.rest.X, X[parts.numbers])
    together = np.concatenate([parts.first.y, parts.rest.y])
    np.testing.assert_array_equal(np.sort(together), np.sort(y))
    again = training.split(0.4, stream=1, method="It", parts="parts")
    np.testing.assert_array_equal(again.numbers, parts.numbers)
    with pytest.raises(vhat.InputError, match="It leaves 3 and 27 of 30 rows to its two parts"):
        training.split(0.1, stream=1, method="It", parts="parts")


def test_all_methods_but_the_one_that_wraps_another_are_on_the_base_class():
    kinds = {name: getattr(methods, name) for name in METHODS}
    assert {name for name, kind in kinds.items() if not issubclass(kind, BaseMethod)} == {"WithRecipe"}
    assert all("fit" not in vars(kind) for name, kind in kinds.items() if name != "WithRecipe")
