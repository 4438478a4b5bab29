"""Printed numbers: decimal points below each other, with the digits that a half width leaves meaningful."""

import numpy as np
import pytest

import vhat
from vhat.intervals.aligned_numbers import align_columns, decimals_of

RNG = np.random.default_rng(0)


def points_of(column):
    """Return where the decimal point of each number stands, or would stand."""
    return {text.index(".") if "." in text else len(text.rstrip()) for text in column if "nan" not in text}


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e4])
def test_points_are_aligned_and_every_text_is_the_number(size):
    values = size * np.array([1234.567, -0.0123, 7.0, np.nan, 250.0])
    half = size * np.array([3.0, 0.001, 40.0, np.nan, 2.5])
    (column,) = align_columns([values], decimals_of(half, 3))
    assert len({len(text) for text in column}) == 1
    assert len(points_of(column)) == 1
    written = np.array([float(text) for text in column])
    known = np.isfinite(values)
    assert np.all(np.abs(written - values)[known] <= 0.005 * half[known])
    assert column[3].strip() == "nan"


def test_rows_of_one_size_share_their_decimals():
    (column,) = align_columns([np.array([1.5, 12.25, -3.0])], np.array([3, 2, 4]))
    assert column == [" 1.5000", "12.2500", "-3.0000"]


def test_very_different_sizes_are_written_in_powers_of_ten():
    values = np.array([3.25e12, 1.5e-9, np.nan])
    (column,) = align_columns([values], decimals_of(values, 3))
    assert len({len(text) for text in column}) == 1
    np.testing.assert_allclose([float(text) for text in column], values, rtol=1e-3)


@pytest.mark.parametrize("values", [[], [np.nan], [0.0], [np.inf, -np.inf]])
def test_nothing_to_align_is_written_all_the_same(values):
    column = np.array(values)
    (texts,) = align_columns([column], decimals_of(column, 3))
    np.testing.assert_array_equal([float(text) for text in texts], column)


def test_the_lines_of_a_printed_interval_end_in_one_column():
    x = RNG.normal(size=40)
    fitted = vhat.from_numpy(lambda q, z: q[0] + q[1] * z, np.array([1.0, 2.0]), x, 1 + 2 * x + RNG.normal(size=40))
    band = fitted.polish().interval(np.array([0.0, 1e3, -1e5, 0.3]))
    lines = repr(band).splitlines()[2:7]
    starts = {line.index("converged") for line in lines[1:]}
    assert starts == {lines[0].index("status")}
    centers = [line[: lines[0].index("center") + len("center")] for line in lines[1:]]
    np.testing.assert_allclose([float(text) for text in centers], band.center, rtol=1e-3)
    assert len(points_of(centers)) == 1
