"""Numbers written as text are read in one notation a column, and refused where two fit."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import vhat
from vhat.tables.columns import Columns, Wording

COMMAND = Wording("data.csv", command=True)


def read(cells, **asked):
    """The numbers of a column 'a' of these cells."""
    frame = pd.DataFrame({"a": pd.Series(cells, dtype=object)})
    return Columns.of(frame, asked).encode(frame).numbers[:, 0]


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["1.5", "-2", "3e2", ".5", "6."], [1.5, -2, 300, 0.5, 6]),
        (["1,5", "2", "-0,25", ",5"], [1.5, 2, -0.25, 0.5]),
        (["1,234.5", "12", "1,234,567"], [1234.5, 12, 1234567]),
        (["1.234,5", "12", "1.234.567"], [1234.5, 12, 1234567]),
        (["1 234,5", "12\u00a0345", "7"], [1234.5, 12345, 7]),
        (["1'234.5", "12\u2019345", "7.1"], [1234.5, 12345, 7.1]),
        (["12.3%", "0.1 %", "-5%"], [0.123, 0.001, -0.05]),
        (["12,3 %", "7 %"], [0.123, 0.07]),
        (["$1,200.50", "-$3", "($4.25)", "12"], [1200.5, -3, -4.25, 12]),
        (["1.200,50 €", "3 €", "€ 2,5"], [1200.5, 3, 2.5]),
        (["EUR 12", "13.5 EUR"], [12, 13.5]),
        (["\u22123.5", "+4"], [-3.5, 4]),
        (["True", "1", "false", "2.5"], [1, 1, 0, 2.5]),
        ([1.5, 2, True, "3"], [1.5, 2, 1, 3]),
    ],
)
def test_each_notation_reads_as_the_number_that_a_person_would_write(cells, numbers):
    np.testing.assert_array_equal(read(cells), numbers)


def test_percent_signs_shift_the_decimal_point_and_round_nothing():
    """Every number of three decimals: 12.345% is the float that is nearest to 0.12345."""
    cells = [f"{n / 1000:.3f}%" for n in range(1, 20000, 7)]
    np.testing.assert_array_equal(read(cells), [float(f"{n / 100000:.5f}") for n in range(1, 20000, 7)])


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (["1,234", "2,345"], r"'1,234', which is 1234 with a decimal point and 1\.234 with a decimal comma"),
        (["1,234", "2,345"], "--columns a=decimal-point, or --columns a=decimal-comma"),
        (["5%", "0.12"], "percent sign in some cells and none in others"),
        (["$5", "€7"], r"mixes the currencies \$ and €"),
        (["1.5", "2.5", "deep"], r"data.csv, row 2: column 'a' holds 'deep' among numbers.*--columns a=number"),
        (["1,5", "2.5", "3,5"], "row 1: column 'a' holds '2.5' among numbers"),
        (["1_000", "2", "3", "4"], "row 0: column 'a' holds '1_000'"),
        (["\uff11\uff12", "2", "3", "4"], "row 0: column 'a' holds"),
    ],
)
def test_cells_that_do_not_decide_are_refused_with_the_option_that_does(cells, told):
    with pytest.raises(vhat.InputError, match=told):
        Columns.of(pd.DataFrame({"a": cells}), wording=COMMAND)


def test_the_user_decides_where_cells_do_not():
    cells = ["1,234", "2,345"]
    np.testing.assert_array_equal(read(cells, a="decimal-point"), [1234, 2345])
    np.testing.assert_array_equal(read(cells, a="decimal-comma"), [1.234, 2.345])
    assert read(["1.234", "2.5"], a="decimal-point").tolist() == [1.234, 2.5]
    assert read(["1.234", "2.345"], a="decimal-comma").tolist() == [1234, 2345]


def test_another_column_of_the_table_decides_and_that_is_said():
    frame = pd.DataFrame({"a": ["1,234", "2,345"], "b": ["0,5", "1,25"], "c": ["1.234", "5.678"]})
    columns = Columns.of(frame, wording=COMMAND)
    np.testing.assert_array_equal(columns.encode(frame).numbers, [[1.234, 0.5, 1234], [2.345, 1.25, 5678]])
    assert columns.columns[0].remark == (
        "'1,234' is read with a decimal comma, as in column 'b'; if that is wrong: --columns a=decimal-point"
    )
    frame = frame.assign(b=["0.5", "1,234.25"])
    np.testing.assert_array_equal(Columns.of(frame).encode(frame).numbers, [[1234, 0.5, 1.234], [2345, 1234.25, 5.678]])


def test_plain_numbers_keep_their_decimal_point_where_nothing_speaks_against_it():
    np.testing.assert_array_equal(read(["1.234", "5.678"]), [1.234, 5.678])


def test_cells_that_are_no_number_count_as_missing_where_the_user_says_number():
    frame = pd.DataFrame({"a": ["1", "2", "deep", "4"]})
    found = Columns.of(frame, {"a": "number"}).encode(frame)
    assert found.names == ("a", "a is missing")
    np.testing.assert_array_equal(found.numbers, [[1, 0], [2, 0], [2, 1], [4, 0]])


@pytest.mark.parametrize(
    ("training", "cell"), [(["1,5", "2"], "2.5"), (["5%", "7%"], "0.5"), (["$5", "$7"], "€5"), (["1", "2"], "5%")]
)
def test_a_new_cell_in_another_notation_or_unit_is_refused(training, cell):
    columns = Columns.of(pd.DataFrame({"a": training}))
    with pytest.raises(vhat.InputError, match=r"X, row 1: column 'a' holds .*, which is not a number"):
        columns.encode(pd.DataFrame({"a": [training[0], cell]}))
