"""A level is written with enough digits, by one function, everywhere."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest

import vhat
from tests.report import cases
from vhat.level import level_text
from vhat.methods.base.guarantee import Claim


@pytest.mark.parametrize("power", range(1, 13))
def test_a_level_below_certainty_is_written_below_certainty(power):
    text = level_text(10.0**-power)
    assert Decimal(text.rstrip("%")) == 100 - Decimal(10) ** (2 - power)


@pytest.mark.parametrize("delta", [0.05 / 700, 0.05 / 32768, 1 / 3, 3.21e-7, 0.05, 0.999999, 0.9999999997])
def test_what_is_missing_to_certainty_has_two_digits_at_least(delta):
    level = Decimal(level_text(delta).rstrip("%"))
    assert float(100 - level) == pytest.approx(100 * delta, rel=0.05)
    assert float(level) == pytest.approx(100 * (1 - delta), rel=0.05)


def test_ordinary_levels_stay_short_and_nines_are_not_counted_without_end():
    assert [level_text(delta) for delta in (0.5, 0.1, 0.05, 0.01, 0.001, 0.025)] == [
        "50%",
        "90%",
        "95%",
        "99%",
        "99.9%",
        "97.5%",
    ]
    assert level_text(1e-30) == "1 - 1e-30"
    assert level_text(0.0) == "100%"


def test_a_tiny_delta_is_not_called_certainty_anywhere():
    fitted, x = cases.bent_fit(30, ("a", "b", "c")), cases.table(3, 1, ("a", "b", "c"))[0]
    band = fitted.interval(x, 1e-9)
    assert band.guarantee.startswith("Nominal 99.9999999% at each point taken alone")
    assert "99.9999999% confidence" in repr(band)
    claim = Claim("wald", "the mean", "an argument", ("normal noise",))
    assert claim.sentence(1e-9, "mean").startswith("Nominal 99.9999999% at")
    assert claim.sentence(np.nan, "mean").startswith("No stated level at")
    ax = vhat.plot.coverage_plane(["a", "b"], np.array([1.0, 2.0]), np.array([0.9, 1.0]), level=1 - 1e-9)
    assert any("99.9999999%" in text.get_text() for text in ax.texts)
