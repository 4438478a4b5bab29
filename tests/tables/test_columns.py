"""The columns of a table are decided over all of its cells, and every row is then read alone."""

from __future__ import annotations

import datetime
import json

import numpy as np
import pandas as pd
import pytest
from sklearn.impute import SimpleImputer

import vhat
from vhat.tables.columns import Columns, Wording
from vhat.tables.columns.learn import weighted_median

ROWS = 24


def messy():
    """One column of each kind."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "number": rng.normal(size=ROWS),
            "gaps": np.where(np.arange(ROWS) % 5 == 0, np.nan, rng.normal(size=ROWS)),
            "price": [f"{value:.2f} €".replace(".", ",") for value in rng.uniform(10, 90, ROWS)],
            "date": [f"{1 + row:02d}/03/2024" for row in range(ROWS)],
            "time": pd.date_range("2024-03-01", periods=ROWS, freq="6h", tz="Europe/Berlin"),
            "duration": pd.to_timedelta(np.arange(ROWS), unit="h"),
            "flag": np.arange(ROWS) % 3 == 0,
            "word": ["yes", "no", None] * (ROWS // 3),
            "city": ["Ulm", "Bonn ", "Köln"] * 7 + ["Jena", "Hof", ""],
            "zone": pd.Categorical([1, 2] * (ROWS // 2)),
            "name": [f"person {row}" for row in range(ROWS)],
        }
    )


def test_each_kind_is_found_and_told():
    told = {column.name: column.told for column in Columns.of(messy()).columns}
    assert told["number"] == "number"
    assert told["gaps"].startswith("number: 5 missing, filled with the median ")
    assert told["price"] == "number: decimal comma, in €"
    assert told["date"] == "date: day/month/year"
    assert told["time"] == "date: year-month-day"
    assert told["flag"] == "yes/no"
    assert told["word"] == "yes/no: yes is 1, no is 0, 8 missing, filled with the median 0.5 and marked"
    assert told["city"] == "category: 6 levels, 3 rare ones as (other), 1 missing, as a level"
    assert told["zone"] == "category: 2 levels"
    assert told["name"] == "left out: text, 24 different in 24 rows"


def test_the_numbers_are_those_of_cleaning_by_hand():
    frame = messy()
    found = Columns.of(frame).encode(frame)
    numbers = dict(zip(found.names, found.numbers.T, strict=True))
    np.testing.assert_array_equal(numbers["number"], frame["number"])
    filled = SimpleImputer(strategy="median", add_indicator=True).fit_transform(frame[["gaps"]])
    np.testing.assert_array_equal(np.column_stack([numbers["gaps"], numbers["gaps is missing"]]), filled)
    by_hand = [float(text.removesuffix(" €").replace(",", ".")) for text in frame["price"]]
    np.testing.assert_array_equal(numbers["price"], by_hand)
    since = (pd.to_datetime(frame["date"], format="%d/%m/%Y") - pd.Timestamp("1970-01-01")).dt.days
    np.testing.assert_array_equal(numbers["date"], since)
    seconds = [moment.timestamp() for moment in frame["time"]]
    np.testing.assert_allclose(numbers["time"], np.array(seconds) / 86400, rtol=1e-15)
    np.testing.assert_array_equal(numbers["duration"], np.arange(ROWS) / 24)
    np.testing.assert_array_equal(numbers["flag"], frame["flag"])
    city = frame["city"].str.strip()
    dummies = pd.get_dummies(city.where(city.isin(["Ulm", "Bonn", "Köln"]), "(other)"), prefix="city", prefix_sep=" = ")
    for name in dummies:
        np.testing.assert_array_equal(numbers[name], dummies[name])
    assert not any("person" in name for name in found.names)


def test_rows_are_read_alike_alone_and_together_and_after_a_restore():
    frame = messy()
    columns = Columns.of(frame)
    restored = Columns.restore(json.loads(json.dumps(columns.describe())))
    assert restored == columns
    whole = columns.encode(frame).numbers
    for row in range(0, ROWS, 5):
        np.testing.assert_array_equal(restored.encode(frame[row : row + 2]).numbers, whole[row : row + 2])
    np.testing.assert_array_equal(columns.encode(frame[frame.columns[::-1]]).numbers, whole)


def test_an_unknown_level_is_an_average_one_or_one_of_the_rare_and_has_a_status():
    frame = pd.DataFrame({"a": ["x"] * 6 + ["y"] * 3, "b": ["u"] * 5 + ["v"] * 3 + ["w"]})
    columns = Columns.of(frame)
    found = columns.encode(pd.DataFrame({"a": ["x", "z", ""], "b": ["w", "q", "v"]}))
    assert found.names == ("a = x", "a = y", "b = u", "b = v", "b = (other)")
    np.testing.assert_allclose(found.numbers[1], [6 / 9, 3 / 9, 0, 0, 1])
    np.testing.assert_allclose(found.numbers[2], [6 / 9, 3 / 9, 0, 1, 0])
    assert found.status.tolist() == ["", "unknown level", "missing cell"]
    assert {name: rows.tolist() for name, rows in found.unknown.items()} == {
        "a": [False, True, False],
        "b": [False, True, False],
    }


def test_a_gap_has_a_status_only_where_training_had_none():
    frame = pd.DataFrame({"a": [1.0, 2.0, 4.0], "b": [1.0, np.nan, 3.0]})
    found = Columns.of(frame).encode(pd.DataFrame({"a": [np.nan, 1.0], "b": [np.nan, np.nan]}))
    np.testing.assert_array_equal(found.numbers, [[2, 2, 1], [1, 2, 1]])
    assert found.status.tolist() == ["missing cell", ""]


def test_the_most_frequent_levels_have_columns_and_the_rest_share_one():
    cells = [f"level {k:02d}" for k in range(60) for _ in range(3 + (k < 40))]
    columns = Columns.of(pd.DataFrame({"a": cells}))
    assert len(columns.network_inputs) == 41
    assert columns.network_inputs[-2:] == ("a = level 39", "a = (other)")
    assert columns.columns[0].remark == "60 levels, of which the 40 most frequent have a column of their own"


def test_a_constant_text_makes_no_column_and_another_one_is_unknown():
    columns = Columns.of(pd.DataFrame({"a": ["x"] * 4, "b": [1, 2, 3, 4]}))
    assert columns.network_inputs == ("b",)
    assert columns.encode(pd.DataFrame({"a": ["x", "y"], "b": [1, 2]})).status.tolist() == ["", "unknown level"]


@pytest.mark.parametrize(
    ("cells", "asked", "days"),
    [
        (["2024-01-31", "2024-02-01T12:00"], {}, [19753, 19754.5]),
        (["31.01.2024", "01.02.2024"], {}, [19753, 19754]),
        (["01/31/2024", "02/01/2024"], {}, [19753, 19754]),
        (["31 Jan 2024", "1 Feb 2024"], {}, [19753, 19754]),
        (["Jan 31, 2024", "May 1, 2024"], {}, [19753, 19844]),
        (["03/04/2024", "05/06/2024"], {"a": "day-first"}, [19816, 19879]),
        (["03/04/2024", "05/06/2024"], {"a": "month-first"}, [19786, 19849]),
        (["2024-01-31T01:00+01:00", "2024-01-31T00:00Z"], {}, [19753, 19753]),
    ],
)
def test_dates_are_days_since_1970(cells, asked, days):
    frame = pd.DataFrame({"a": cells})
    np.testing.assert_allclose(Columns.of(frame, asked).encode(frame).numbers[:, 0], days, rtol=1e-15)


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (["03/04/2024", "05/06/2024"], "day and month may be exchanged.*columns={'a': 'day-first'}"),
        (["2024-01-01", "2024-02-30", "2024-03-01"], "row 1: column 'a' holds '2024-02-30' among dates"),
    ],
)
def test_dates_that_cannot_be_read_are_refused(cells, told):
    with pytest.raises(vhat.InputError, match=told):
        Columns.of(pd.DataFrame({"a": cells}))


def test_overrides_are_taken_and_unknown_ones_refused():
    frame = pd.DataFrame({"zip": [1, 2, 1, 2, 1, 2], "x": np.arange(6.0)})
    assert Columns.of(frame, {"zip": "category"}).network_inputs == ("zip = 1", "zip = 2", "x")
    assert Columns.of(frame, {"zip": "skip"}).needed == ("x",)
    with pytest.raises(vhat.InputError, match=r"--columns zap=skip: data.csv has no column 'zap'\. Did you mean 'zip'"):
        Columns.of(frame, {"zap": "skip"}, wording=Wording("data.csv", command=True))
    with pytest.raises(vhat.InputError, match="a column is one of number, decimal-point"):
        Columns.of(frame, {"zip": "word"})


def test_codes_are_the_same_levels_with_and_without_gaps():
    """A gap turns whole numbers into floats: 1 and 1.0 are one level."""
    columns = Columns.of(pd.DataFrame({"a": [1, 2, 1, 2, 1, 2]}), {"a": "category"})
    found = columns.encode(pd.DataFrame({"a": [1.0, 2.0, np.nan]}))
    np.testing.assert_array_equal(found.numbers, [[1, 0], [0, 1], [0.5, 0.5]])


def test_the_median_counts_weights_as_copies():
    rng = np.random.default_rng(1)
    for size in range(1, 12):
        values, weights = rng.integers(0, 9, size).astype(float), rng.integers(1, 4, size)
        assert weighted_median(values, weights) == np.median(np.repeat(values, weights))


def test_columns_that_the_model_sees_have_different_names_whatever_the_table_is_called():
    words = ["(other)"] * 7 + ["x", "y"]
    frame = pd.DataFrame({"a": [1.0, np.nan, 3.0] * 3, "a is missing": np.arange(9.0), "b": words})
    columns = Columns.of(frame)
    assert columns.network_inputs == ("a", "a is missing", "a is missing'", "b = (other)", "b = (other)'")
    assert columns.encode(frame).names == columns.network_inputs
    model = vhat.NetworkRegressor((), weight_decay=0.1).fit(frame, np.arange(9.0) ** 2)
    assert model.predict_interval(frame).upper.shape == (9,)


def test_numbers_that_may_be_thousands_are_read_as_before_and_that_is_said():
    frame = pd.DataFrame({"a": ["1.234", "5.678"]})
    (column,) = Columns.of(frame, wording=Wording("data.csv", command=True)).columns
    assert column.remark == (
        "'1.234' is read with a decimal point; if the point stands between thousands: --columns a=decimal-comma"
    )
    assert not Columns.of(pd.DataFrame({"a": ["1.234", "5.67"]})).columns[0].remark


def test_gaps_among_percents_are_gaps():
    frame = pd.DataFrame({"share": ["12%", "", "15%", "20%"]})
    numbers = Columns.of(frame).encode(frame).numbers
    np.testing.assert_allclose(numbers[:, 0], [0.12, 0.15, 0.15, 0.2])


def test_levels_of_a_category_are_read_as_the_user_says():
    frame = pd.DataFrame(
        {"x": pd.Categorical(["1,5", "2,5", "1,5"]), "day": pd.Categorical(["01.02.2024"] * 2 + ["03.02.2024"])}
    )
    numbers = Columns.of(frame, {"x": "decimal-comma", "day": "day-first"}).encode(frame).numbers
    np.testing.assert_allclose(numbers[:, 0], [1.5, 2.5, 1.5])
    np.testing.assert_allclose(np.diff(numbers[:, 1]), [0.0, 2.0])


def test_dates_are_seen_whatever_stands_in_the_first_row():
    cells = [f"2024-01-{day:02d}" for day in range(1, 29)]
    for order in (["unknown", *cells], [*cells, "unknown"]):
        with pytest.raises(vhat.InputError, match="holds 'unknown' among dates"):
            Columns.of(pd.DataFrame({"day": order}))


def test_a_cell_that_cannot_be_read_does_not_decide_how_the_others_are():
    """Told to take a column for numbers or dates, what is none is missing; it settles no doubt about the rest."""
    prices = pd.DataFrame({"a": ["1,234", "2,345", "k.A."], "b": ["12,5", "13,5", "14,5"]})
    np.testing.assert_allclose(Columns.of(prices, {"a": "number"}).encode(prices).numbers[:2, 0], [1.234, 2.345])
    with pytest.raises(vhat.InputError, match="no cell decides"):
        Columns.of(prices[["a"]], {"a": "number"})
    days = pd.DataFrame({"day": ["01/02/2024", "03/04/2024", "unknown1"]})
    with pytest.raises(vhat.InputError, match="day and month may be exchanged"):
        Columns.of(days, {"day": "date"})


@pytest.mark.parametrize(
    ("trained", "cell", "either"), [("2.5", "5,125", "5125 or 5.125"), ("2,5", "5.125", "5.125 or 5125")]
)
def test_a_sign_that_training_saw_nowhere_is_not_taken_for_thousands(trained, cell, either):
    columns = Columns.of(pd.DataFrame({"size": [trained, "3", "7"]}))
    with pytest.raises(vhat.InputError, match=f"which is not clear: it may be {either}, and no training cell"):
        columns.encode(pd.DataFrame({"size": [cell]}))
    restored = Columns.restore(columns.describe())
    with pytest.raises(vhat.InputError, match="not clear"):
        restored.encode(pd.DataFrame({"size": [cell]}))


@pytest.mark.parametrize("cell", ["1,234,567", "5,125.0", "5 125"])
def test_thousands_that_can_be_nothing_else_are_read(cell):
    columns = Columns.of(pd.DataFrame({"size": ["2.5", "3", "7"]}))
    number = float(cell.replace(",", "").replace(" ", ""))
    assert columns.encode(pd.DataFrame({"size": [cell]})).numbers[0, 0] == number


def test_who_names_the_decimal_sign_has_said_what_the_other_one_is():
    columns = Columns.of(pd.DataFrame({"size": ["2.5", "3", "7"]}), {"size": "decimal-point"})
    assert columns.encode(pd.DataFrame({"size": ["5,125"]})).numbers[0, 0] == 5125


def test_thousands_of_training_are_read_later():
    columns = Columns.of(pd.DataFrame({"size": ["2.5", "3,000", "7"]}))
    assert columns.encode(pd.DataFrame({"size": ["5,125"]})).numbers[0, 0] == 5125


@pytest.mark.parametrize("cells", [["1500-01-02", "2020-03-14"], ["02.01.1500", "14.03.2020"]])
def test_dates_of_any_year_are_read(cells):
    found = Columns.of(pd.DataFrame({"day": [*cells, ""]})).encode(pd.DataFrame({"day": cells})).numbers[:, 0]
    start = datetime.date(1970, 1, 1)
    want = [(datetime.date(1500, 1, 2) - start).days, (datetime.date(2020, 3, 14) - start).days]
    assert found.tolist() == want


@pytest.mark.parametrize(("trained", "cell"), [("1'234.5", "5,125"), ("1 234,5", "5.125"), ("1 234", "5,125")])
def test_other_signs_between_thousands_do_not_tell_what_a_comma_or_a_point_is(trained, cell):
    columns = Columns.of(pd.DataFrame({"size": [trained, "3", "7"]}))
    with pytest.raises(vhat.InputError, match="not clear: it may be"):
        columns.encode(pd.DataFrame({"size": [cell]}))


def test_a_cell_that_is_not_clear_counts_as_missing_where_the_user_said_number():
    frame = pd.DataFrame({"size": ["2.5", "3", "7"]})
    found = Columns.of(frame, {"size": "number"}).encode(pd.DataFrame({"size": ["5,125", "3"]}))
    assert found.status.tolist() == ["missing cell", ""]


def test_columns_are_printed_one_a_line_with_what_was_left_out():
    columns = Columns.of(messy().assign(floor=2.0, same="x"))
    lines = str(columns).split("\n")
    assert lines[0] == "13 columns, 3 left out:"
    assert lines[1] == "  number    number"
    assert lines[5].split() == ["time", "date:", "year-month-day"]
    assert lines[-3:] == [
        "  name      left out: text, 24 different in 24 rows",
        "  floor     left out: the same in all rows",
        "  same      left out: 'x' in all rows",
    ]
    assert str(Columns.of(pd.DataFrame({"a": [1, 2]}))) == "1 column:\n  a  number"


def test_a_doubtful_reading_is_printed_with_the_option_that_changes_it():
    columns = Columns.of(pd.DataFrame({"a": ["1.234", "5.678"]}))
    assert "if the point stands between thousands: columns={'a': 'decimal-comma'}" in str(columns)


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_times_beyond_the_reach_of_nanoseconds_are_days_too(unit):
    times = pd.Series(np.array(["1500-01-02", "NaT", "20000-06-01T12:00"], dtype=f"datetime64[{unit}]"))
    found = Columns.of(pd.DataFrame({"day": times})).encode(pd.DataFrame({"day": times})).numbers
    days = np.array(["1500-01-02", "20000-06-01"], dtype="datetime64[D]").astype(float)
    want = days + np.array([0.0, 0.5])
    np.testing.assert_array_equal(found[[0, 2], 0], want)
    np.testing.assert_array_equal(found[:, 1], [0, 1, 0])


def test_times_and_durations_in_seconds_do_not_overflow():
    seconds = np.array([5 * 86400, 10**13, 86400])
    frame = pd.DataFrame(
        {"time": pd.Series(seconds.astype("datetime64[s]")), "lag": pd.Series(seconds.astype("timedelta64[s]"))}
    )
    numbers = Columns.of(frame).encode(frame).numbers
    np.testing.assert_array_equal(numbers, np.column_stack([seconds / 86400] * 2))


def test_levels_that_differ_in_case_only_are_named_and_not_merged():
    cells = ["Truck", "truck ", " truck", "Car"] * 5
    column = Columns.of(pd.DataFrame({"kind": cells}))["kind"]
    assert column.levels == ("Car", "Truck", "truck")
    assert "differ in case only are levels of their own: 'Truck' and 'truck'" in column.remark
    assert not Columns.of(pd.DataFrame({"kind": ["Truck", "Car "] * 5}))["kind"].remark


def test_a_category_most_of_whose_rows_have_rare_levels_is_pointed_out():
    cells = [f"word {'abcdefghij'[row % 10]}{'klmnopqrst'[row // 10]}" for row in range(90)] + ["usual"] * 30
    column = Columns.of(pd.DataFrame({"note": cells}))["note"]
    assert column.remark.startswith("90 of 120 rows have one of 90 levels that share a column, such as 'word ak'")
    assert "columns={'note': 'skip'}" in column.remark


@pytest.mark.parametrize(
    ("cells", "numbers", "told"),
    [
        (["15,44 kg", "3,5 kg", "12 kg"], [15.44, 3.5, 12.0], "number: decimal comma, unit kg removed"),
        (
            ["15.44kg", "3.5kg", ""],
            [15.44, 3.5, 9.47],
            "number: unit kg removed, 1 missing, filled with the median 9.47 and marked",
        ),
        (["1.234,5 m²", "80 m²", "7"], [1234.5, 80.0, 7.0], "number: decimal comma, unit m² removed"),
        (["-5 °C", "12.5 °C", "20 °C"], [-5.0, 12.5, 20.0], "number: unit °C removed"),
        (["80 km/h", "100.5 km/h", "90 km/h"], [80.0, 100.5, 90.0], "number: unit km/h removed"),
    ],
)
def test_a_unit_after_the_numbers_of_a_column_is_removed(cells, numbers, told):
    frame = pd.DataFrame({"size": cells})
    columns = Columns.of(frame)
    assert columns["size"].told == told
    np.testing.assert_allclose(columns.encode(frame).numbers[:, 0], numbers, rtol=1e-12)
    assert Columns.restore(columns.describe()) == columns


def test_another_unit_among_the_numbers_is_refused_by_its_row():
    cells = [f"{row}.5 kg" for row in range(60)]
    cells[7] = "700 g"
    with pytest.raises(vhat.errors.InputError, match=r"row 7: column 'weight' holds '700 g' among numbers. Correct it"):
        Columns.of(pd.DataFrame({"weight": cells}))
    told = Columns.of(pd.DataFrame({"weight": cells}), {"weight": "number"})["weight"].told
    assert told.startswith("number: unit kg removed, 1 missing")
    trained = Columns.of(pd.DataFrame({"weight": cells[:7]}))
    with pytest.raises(vhat.errors.InputError, match=r"'700 g'.* not a number like those of training .unit kg"):
        trained.encode(pd.DataFrame({"weight": ["700 g"]}))


@pytest.mark.parametrize("cells", [["12A", "12B", "14A"], ["1 day", "2 days", "3 days"], ["Route 66", "Route 1", "A4"]])
def test_codes_and_few_levels_are_a_category_whatever_digits_they_hold(cells):
    assert Columns.of(pd.DataFrame({"code": cells * 4}))["code"].kind == "category"


@pytest.mark.parametrize("asked", ["number", "decimal-point", "decimal-comma"])
def test_words_that_the_user_calls_numbers_are_refused_with_a_cell(asked):
    with pytest.raises(vhat.errors.InputError, match=r"row 1: column 'note' was to hold.* and none is, such as 'red'"):
        Columns.of(pd.DataFrame({"note": ["", "red", "blue"]}), {"note": asked})
    assert Columns.of(pd.DataFrame({"note": ["", "NA"]}), {"note": asked})["note"].told.endswith("empty in all rows")
