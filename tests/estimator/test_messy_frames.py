"""The estimator takes data frames as they come: text, categories, dates, gaps."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import vhat

ROWS = 60
SMALL = {"hidden_layer_sizes": (3,), "weight_decay": 0.03}


def messy():
    """A table with a column of each kind, the same cleaned by hand, and a target."""
    rng = np.random.default_rng(3)
    price, gaps, day = rng.uniform(10, 5000, ROWS), rng.normal(size=ROWS), rng.integers(0, 300, ROWS)
    price = np.round(price, 2)
    gaps[::7] = np.nan
    flag = rng.random(ROWS) < 0.4
    days = pd.Timestamp("2023-05-01") + pd.to_timedelta(day, unit="D")
    raw = pd.DataFrame(
        {
            "price": [f"{value:,.2f} €".translate(str.maketrans(",.", ".,")) for value in price],
            "gaps": gaps,
            "when": days.strftime("%d.%m.%Y"),
            "flag": np.where(flag, "yes", "no"),
        }
    )
    clean = pd.DataFrame(
        {
            "price": price,
            "gaps": np.where(np.isnan(gaps), np.nanmedian(gaps), gaps),
            "when": (days - pd.Timestamp("1970-01-01")).days.astype(float),
            "flag": flag.astype(float),
        }
    )
    y = price / 1000 + np.nan_to_num(gaps) + flag + 0.1 * rng.normal(size=ROWS)
    return raw, clean, y


def test_a_messy_table_gives_the_numbers_of_the_same_table_cleaned_by_hand():
    """Without gaps, whose mark is scaled by a rule of its own: bit for bit."""
    raw, clean, y = messy()
    names = ["price", "when", "flag"]
    found = vhat.NetworkRegressor(**SMALL).fit(raw[names], y)
    expected = vhat.NetworkRegressor(**SMALL).fit(clean[names], y)
    band, by_hand = found.predict_interval(raw[names]), expected.predict_interval(clean[names])
    for name in ("center", "lower", "upper", "standard_error", "unsupported"):
        np.testing.assert_array_equal(getattr(band, name), getattr(by_hand, name))
    assert band.status.tolist() == ["converged"] * ROWS


def ridge(design, y, lam):
    """The linear model of standardised columns, in closed form; the intercept is penalised, too."""
    center, unit = y.mean(), y.std()
    rows = np.column_stack([design, np.ones(len(design))])
    theta = np.linalg.solve(rows.T @ rows / len(y) + lam * np.eye(rows.shape[1]), rows.T @ ((y - center) / unit)) / len(
        y
    )
    return lambda new: center + unit * (np.column_stack([new, np.ones(len(new))]) @ theta)


def test_levels_and_marks_are_coded_as_documented():
    """Against ridge regression in closed form: levels over sqrt(1/2), marks over 1/2, numbers over their spread."""
    rng = np.random.default_rng(5)
    city = rng.choice(["Ulm", "Bonn", "Jena"], ROWS, p=[0.6, 0.3, 0.1])
    gaps = np.where(np.arange(ROWS) % 9 == 0, np.nan, rng.normal(size=ROWS))
    y = rng.normal(size=ROWS) + 3 * (city == "Jena") + np.isnan(gaps)
    frame = pd.DataFrame({"city": city, "gaps": gaps})
    model = vhat.NetworkRegressor((), weight_decay=0.1).fit(frame, y)
    levels = np.column_stack([city == level for level in ("Bonn", "Jena", "Ulm")]).astype(float)
    filled = np.where(np.isnan(gaps), np.nanmedian(gaps), gaps)
    mark = np.isnan(gaps).astype(float)
    design = np.column_stack(
        [
            (levels - levels.mean(axis=0)) / np.sqrt(0.5),
            (filled - filled.mean()) / filled.std(),
            (mark - mark.mean()) / 0.5,
        ]
    )
    by_hand = ridge(design, y, 0.1)
    np.testing.assert_allclose(model.predict(frame), by_hand(design), rtol=1e-9)
    # a level that training did not see stands at the origin of the levels: the mean of the training rows
    new = design[:1].copy()
    new[0, :3] = 0.0
    with pytest.warns(vhat.TableWarning, match="column 'city': there are levels that training did not see in row 0"):
        unknown = model.predict(frame[:1].assign(city="Hof"))
    np.testing.assert_allclose(unknown, by_hand(new), rtol=1e-9)


def test_two_balanced_levels_weigh_as_much_as_one_standardised_column():
    rng = np.random.default_rng(6)
    flag = np.arange(ROWS) % 2 == 0
    y = rng.normal(size=ROWS) + flag
    coded = vhat.NetworkRegressor((), weight_decay=0.1).fit(pd.DataFrame({"a": np.where(flag, "x", "z")}), y)
    number = vhat.NetworkRegressor((), weight_decay=0.1).fit(pd.DataFrame({"a": flag.astype(float)}), y)
    expected = number.predict_interval(pd.DataFrame({"a": flag.astype(float)}))
    found = coded.predict_interval(pd.DataFrame({"a": np.where(flag, "x", "z")}))
    np.testing.assert_allclose(found.center, expected.center, rtol=1e-9)
    np.testing.assert_allclose(found.standard_error, expected.standard_error, rtol=1e-9)


def test_gaps_and_unknown_levels_at_prediction_have_a_status_and_stay_out_of_their_neighbours():
    raw, _, y = messy()
    raw["city"] = ["Ulm", "Bonn", "Jena"] * 20
    model = vhat.NetworkRegressor(**SMALL).fit(raw, y)
    new = raw[:4].copy()
    new.loc[1, "city"] = "Hof"
    new.loc[2, "price"] = None
    new.loc[3, "gaps"] = np.nan  # training had gaps there
    with (
        pytest.warns(vhat.TableWarning, match="column 'price': cells are missing, and none were in training, in row 2"),
        pytest.warns(vhat.TableWarning, match="column 'city': there are levels that training did not see in row 1"),
    ):
        band = model.predict_interval(new)
    assert band.status.tolist() == ["converged", "unknown level", "missing cell", "converged"]
    assert np.all(np.isfinite(band.lower))
    assert band.abstain().tolist() == [False, True, True, False]
    expected = model.predict_interval(raw[[True, False, False, True] + [False] * (ROWS - 4)])
    np.testing.assert_allclose(band.upper[[0]], expected.upper[[0]], rtol=1e-14)


def test_a_gap_is_filled_for_a_table_that_had_none_and_refused_in_an_array():
    _, clean, y = messy()
    model = vhat.NetworkRegressor(**SMALL).fit(clean, y)
    new = clean[:2].copy()
    new.loc[1, "price"] = np.nan
    with pytest.warns(vhat.TableWarning, match="column 'price': cells are missing"):
        band = model.predict_interval(new)
    assert band.status.tolist() == ["converged", "missing cell"]
    filled = model.predict_interval(new.fillna({"price": clean["price"].median()}))
    np.testing.assert_array_equal(band.upper, filled.upper)
    arrays = vhat.NetworkRegressor(**SMALL).fit(clean.to_numpy(), y)
    with pytest.raises(vhat.InputError, match=r"column 0 \(NaN in row 1\)"):
        arrays.predict_interval(new.to_numpy())


def test_a_model_of_a_messy_table_is_saved_and_says_the_same(tmp_path):
    raw, _, y = messy()
    raw["city"] = ["Ulm", "Bonn", "Jena"] * 20
    model = vhat.NetworkRegressor(**SMALL, columns={"flag": "category"}).fit(raw, y)
    model.save(tmp_path / "model")
    loaded = vhat.NetworkRegressor.load(tmp_path / "model")
    assert loaded.columns_ == model.columns_
    assert loaded.columns == {"flag": "category"}
    np.testing.assert_array_equal(loaded.predict_interval(raw).upper, model.predict_interval(raw).upper)
    np.testing.assert_array_equal(loaded.feature_names_in_, raw.columns)
    encoded = loaded.encode(raw)
    assert list(encoded.columns) == list(model.columns_.network_inputs)
    np.testing.assert_array_equal(loaded.fitted_.interval(encoded).upper, model.predict_interval(raw).upper)
    np.testing.assert_array_equal(loaded.predict(encoded), model.predict(raw))


def test_weights_count_as_copies_in_a_messy_table():
    raw, _, y = messy()
    weights = np.arange(ROWS) % 3
    copies = np.repeat(np.arange(ROWS), weights)
    options = {"hidden_layer_sizes": (), "weight_decay": 0.03}
    weighted = vhat.NetworkRegressor(**options).fit(raw, y, weights)
    copied = vhat.NetworkRegressor(**options).fit(raw.iloc[copies], y[copies])
    assert [column.fill for column in weighted.columns_.columns] == [column.fill for column in copied.columns_.columns]
    np.testing.assert_allclose(weighted.predict(raw), copied.predict(raw), rtol=1e-9)


def test_columns_that_are_left_out_are_named_unless_that_was_asked_for():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=40), "note": [f"n{at}" for at in range(40)], "one": ["x"] * 40})
    y = frame["a"] + rng.normal(size=40)
    said = r"2 columns are left out: 'note' \(text, 40 different in 40 rows\); 'one' \('x' in all rows\)"
    with pytest.warns(vhat.TableWarning, match=said) as record:
        vhat.NetworkRegressor((), weight_decay=0.1).fit(frame, y)
    assert len(record) == 1
    assert "columns={'note': 'skip'} says that this is meant" in str(record[0].message)
    asked = vhat.NetworkRegressor((), weight_decay=0.1, columns={"note": "skip", "one": "skip"})
    asked.fit(frame, y)  # warnings are errors
    assert asked.columns_["note"].network_inputs == ()


def test_a_table_whose_columns_are_all_left_out_is_refused_by_their_names():
    X = pd.DataFrame({"note": [f"word {'abcdefghijklmnopqrst'[row]}" for row in range(20)], "none": [None] * 20})
    with pytest.raises(
        vhat.errors.InputError, match=r"every column is left out.*'note' \(text, 20 diff.*'none' \(empty"
    ):
        vhat.NetworkRegressor((2,), weight_decay=0.1).fit(X, np.arange(20.0))
