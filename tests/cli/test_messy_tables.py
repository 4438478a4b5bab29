"""Messy tables go through fit, predict and report in one command each, with the numbers of the clean table."""

from __future__ import annotations

import html
import json
import re

import numpy as np
import pandas as pd
import pytest

import vhat
from tests.cli.cases import read, run
from vhat.cli import predict_stream

ROWS, NEW = 60, 8
SMALL = ("--hidden", "2", "--weight-decay", "0.03")
DAY = pd.Timestamp("1970-01-01")


def german(values, decimals=2):
    """1234.5 as 1.234,50."""
    return [f"{value:,.{decimals}f}".translate(str.maketrans(",.", ".,")) for value in values]


def numbers():
    """Two columns and a target, rounded to what a file of two decimals holds."""
    rng = np.random.default_rng(2)
    size, age = np.round(rng.uniform(200, 5000, ROWS + NEW), 2), np.round(rng.uniform(0, 9, ROWS + NEW), 2)
    y = np.round(900 + size * (1 + 0.1 * np.sin(age)) + 20 * rng.normal(size=len(size)), 2)
    return size, age, y


def messy(case):
    """A table as it comes, the same cleaned by hand, and the options of each."""
    size, age, y = numbers()
    clean = pd.DataFrame({"size": size, "age": age, "price": y})
    rows = np.arange(len(y))
    if case == "decimal comma, thousands points, euros, separator ;":
        raw = pd.DataFrame({"size": german(size), "age": german(age), "price": [f"{t} €" for t in german(y)]})
        return raw, clean, ("--separator", ";"), ()
    if case == "thousands commas, dollars, percent":
        share = pd.Series([f"{value:.2f}" for value in age])
        raw = pd.DataFrame(
            {"size": [f"{v:,.2f}" for v in size], "age": share + "%", "price": [f"${v:,.2f}" for v in y]}
        )
        return raw, clean.assign(age=[float(f"{text}e-2") for text in share]), (), ()
    if case == "dates, yes and no, blanks around cells":
        days, flags = rows * 7 % 365, rows % 3 == 0
        dates = DAY + pd.to_timedelta(19000 + days, unit="D")
        raw = clean.assign(when=dates.strftime("%d/%m/%Y"), flag=np.where(flags, " Yes", "no "))
        return raw, clean.assign(when=19000 + days, flag=flags.astype(int)), (), ()
    if case == "categories with blanks, an identifier of text":
        city = np.array(["Ulm", "Bonn", "Köln"])[rows % 3]
        raw = clean.assign(city=[f" {name} " for name in city], name=[f"house {row}" for row in rows])
        return raw, clean.assign(city=city), (), ()
    if case == "gaps written in many ways":
        words = np.array(["", "NA", "n/a", "-", "?", "null"])
        raw = clean.assign(age=np.where(rows % 5 == 0, words[rows % 6], clean["age"].astype(str)))
        return raw, clean.assign(age=clean["age"].where(rows % 5 != 0)), (), ()
    if case == "codes that are categories, columns to skip, a target without some cells":
        raw = clean.assign(zone=rows % 2, junk=rows % 7, price=y.astype(object))
        raw.loc[3, "price"] = ""
        by_hand = clean.assign(zone=np.where(rows % 2, "B", "A"))
        return raw, by_hand.drop(index=3), ("--columns", "zone=category,junk=skip"), ()
    raise ValueError(case)


CASES = [
    "decimal comma, thousands points, euros, separator ;",
    "thousands commas, dollars, percent",
    "dates, yes and no, blanks around cells",
    "categories with blanks, an identifier of text",
    "gaps written in many ways",
    "codes that are categories, columns to skip, a target without some cells",
]


def through(folder, frame, options):
    """Fit, predict and report, one command each; the intervals, the page and what fit has said."""
    separator = ";" if ";" in options else ","
    folder.mkdir()
    frame[:-NEW].to_csv(folder / "data.csv", index=False, sep=separator)
    frame[-NEW:].to_csv(folder / "new.csv", index=False, sep=separator)
    other = options if "--separator" in options else ()
    fitted = run("fit", folder / "data.csv", "--target", "price", *SMALL, "--out", folder / "m", *options, "--json")
    assert fitted.exit_code == 0, fitted.output
    asked = run("predict", folder / "m", folder / "new.csv", "--out", folder / "out.csv", *other)
    assert asked.exit_code == 0, asked.output
    held = ("--held-out", folder / "new.csv", "--out", folder / "page.html")
    told = run("report", folder / "m", *held, *other)
    assert told.exit_code == 0, told.output
    return read(folder / "out.csv"), (folder / "page.html").read_text(), json.loads(fitted.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_messy_table_goes_through_with_the_numbers_of_the_clean_one(tmp_path, case):
    raw, clean, options, others = messy(case)
    found, page, said = through(tmp_path / "raw", raw, options)
    expected, _, by_hand = through(tmp_path / "clean", clean, others)
    pd.testing.assert_frame_equal(found, expected, rtol=1e-12)
    assert said["training_error"] == pytest.approx(by_hand["training_error"], rel=1e-12)
    assert "How columns were read" in page
    for name, told in said["readings"].items():
        kind, _, detail = told.partition(": ")
        assert f'<th scope="row">{name}</th><td>{kind}</td><td class="words">{html.escape(detail)}' in page


TABLE = "size,city,when,note,price\n" + "".join(
    f"{row % 7}.5,{'ABC'[row % 3]},2024-01-{row + 1:02d},remark {row},{3 * (row % 7) + row % 3 + 0.1 * (row % 4):.1f}\n"
    for row in range(24)
)


def fit(tmp_path, text=TABLE, *options):
    (tmp_path / "data.csv").write_text(text)
    return run("fit", tmp_path / "data.csv", "--target", "price", *SMALL, "--out", tmp_path / "m", *options)


def test_fit_says_one_line_a_kind(tmp_path):
    done = fit(tmp_path)
    assert done.exit_code == 0, done.output
    lines = dict(
        re.split(r"  +", line.strip(), maxsplit=1) for line in done.stdout.splitlines() if "  " in line.strip()
    )
    assert lines["numbers"] == "size"
    assert lines["categories"] == "city (3 levels)"
    assert lines["dates"] == "when (year-month-day)"
    assert lines["left out"] == "note (text, 24 different in 24 rows)"


def test_new_levels_and_gaps_have_a_status_a_sentence_and_no_other_effect(tmp_path):
    assert fit(tmp_path).exit_code == 0
    (tmp_path / "new.csv").write_text("when,city,size\n2024-01-05,A,3\n2024-01-06,Z,3\n,B,3\n2024-01-05,A,\n")
    done = run("predict", tmp_path / "m", tmp_path / "new.csv", "--out", tmp_path / "out.csv")
    assert done.exit_code == 0, done.output
    written = read(tmp_path / "out.csv")
    assert list(written["status"]) == ["converged", "unknown level", "missing cell", "missing cell"]
    assert np.isfinite(written["upper"]).all()
    told = " ".join(done.stderr.split())
    assert "column 'city' holds a level that training never saw in 1 row of" in told
    assert "(first in line 3): an average level replaces it" in told
    (tmp_path / "bad.csv").write_text("when,city,size\n2024-01-05,A,small\n")
    refused = run("predict", tmp_path / "m", tmp_path / "bad.csv")
    assert refused.exit_code == 2
    assert "bad.csv, line 2: column 'size' holds 'small', which is not a number" in refused.stderr


def test_chunks_change_no_bit_and_count_over_the_whole_table(tmp_path, monkeypatch):
    assert fit(tmp_path).exit_code == 0
    rows = [f"{row % 5}.5,{'ABCZ'[row % 4]},2024-01-0{1 + row % 9}" for row in range(13)]
    (tmp_path / "new.csv").write_text("size,city,when\n" + "\n".join(rows) + "\n")
    whole = run("predict", tmp_path / "m", tmp_path / "new.csv", "--out", tmp_path / "whole.csv")
    monkeypatch.setattr(predict_stream, "chunk_rows", lambda network: 4)
    parts = run("predict", tmp_path / "m", tmp_path / "new.csv", "--out", tmp_path / "parts.csv")
    assert whole.exit_code == parts.exit_code == 0
    one, other = read(tmp_path / "whole.csv"), read(tmp_path / "parts.csv")
    pd.testing.assert_frame_equal(one, other, rtol=1e-13)
    assert list(one["status"]) == list(other["status"])
    for done in (whole, parts):
        assert "holds a level that training never saw in 3 rows of" in " ".join(done.stderr.split())


def test_rows_kept_apart_teach_no_levels(tmp_path):
    """The share of each level, and so the mean level, is that of the rows that were learned from."""
    assert fit(tmp_path, TABLE, "--hold-out", "0.5").exit_code == 0
    model = vhat.NetworkRegressor.load(tmp_path / "m")
    learned = pd.read_csv(tmp_path / "data.csv").iloc[model.row_names_.labels - 2]
    assert len(learned) == 12
    shares = learned["city"].value_counts(normalize=True).sort_index()
    assert model.columns_["city"].levels == tuple(shares.index)
    np.testing.assert_allclose(model.columns_["city"].shares, shares, rtol=1e-15)


@pytest.mark.parametrize(
    ("text", "options", "parts"),
    [
        ('a,price\n"1,234",1\n"2,345",2\n', (), ["'1,234', which is 1234 with", "--columns a=decimal-point"]),
        ("a,price\n01/02/2024,1\n03/04/2024,2\n", (), ["day and month may be exchanged", "--columns a=day-first"]),
        ("a,price\n1,1\n2,2\n", ("--columns", "b=skip"), ["--columns b=skip: ", "has no column 'b'"]),
        ("a,price\n1,1\n2,2\n", ("--columns", "a"), ["give names and kinds, such as --columns zip=category"]),
        ("a,price\n1,1\n2,2\n", ("--columns", "a=words"), ["a column is one of number"]),
    ],
)
def test_what_cells_do_not_decide_is_refused_with_the_option_that_does(tmp_path, text, options, parts):
    done = fit(tmp_path, text, *options)
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    for part in parts:
        assert part in done.stderr


def skewed():
    """A positive target that is skewed to the right, and an identifier."""
    rng = np.random.default_rng(4)
    size = rng.uniform(0, 3, 60)
    price = np.exp(size + 0.4 * rng.normal(size=60))
    rows = [f"{row + 100},{a:.3f},{b:.4f}\n" for row, (a, b) in enumerate(zip(size, price, strict=True))]
    return "id,size,price\n" + "".join(rows)


def test_a_log_is_offered_where_it_would_help_and_keeps_limits_positive(tmp_path):
    done = fit(tmp_path, skewed(), "--columns", "id=skip")
    told = " ".join(done.stdout.split())
    assert "price is positive and skewed (skewness" in told
    assert "--log-target fits its log, and no interval is then negative" in told
    done = fit(tmp_path, skewed(), "--log-target", "--force", "--columns", "id=skip")
    told = " ".join(done.stdout.split())
    assert "fitted as its log" in told
    assert "skewed" not in told
    (tmp_path / "new.csv").write_text("size\n0.1\n1.5\n2.9\n")
    asked = run("predict", tmp_path / "m", tmp_path / "new.csv", "--out", tmp_path / "out.csv", "--delta", "0.001")
    assert asked.exit_code == 0, asked.output
    written = read(tmp_path / "out.csv")
    assert (written["lower"] > 0).all()
    assert (written["lower"] < written["center"]).all()
    assert "center is exp of the predicted mean of log y" in " ".join(asked.stderr.split())
    data = tmp_path / "m"
    assert vhat.NetworkRegressor.load(data).log_target


def test_what_stands_out_is_named_and_nothing_else_changes(tmp_path):
    text = skewed().splitlines(keepends=True)
    text += text[-2:]
    told = " ".join(fit(tmp_path, "".join(text)).stdout.split())
    assert "2 rows are copies of an earlier one in every column and the target" in told
    assert "column 'id' looks like an identifier" in told  # the copies do not hide it
    done = json.loads(fit(tmp_path, skewed(), "--force", "--json").stdout)
    assert any("column 'id' looks like an identifier" in each for each in done["findings"])
    assert done["columns"] == ["id", "size"]


@pytest.mark.parametrize("kind", ["numbers", "words"])
def test_copies_of_rows_are_held_out_together(kind, tmp_path):
    size, age, y = numbers()
    table = pd.DataFrame({"size": size, "age": age, "price": y})
    if kind == "words":
        table["city"] = np.array(["Ulm", "Bonn", "Hof"])[np.arange(len(y)) % 3]
    pd.concat([table, table[:20]]).to_csv(tmp_path / "twice.csv", index=False)
    fitted = run(
        "fit", tmp_path / "twice.csv", "--target", "price", "--out", tmp_path / "model", "--hold-out", 0.25, *SMALL
    )
    assert fitted.exit_code == 0, fitted.output
    said = " ".join(fitted.output.split())
    assert re.search(r"20 rows are copies of an earlier one .*\d+ of them among the held-out rows", said)
    assert "on 22 held-out rows" in said or "on 21 held-out rows" in said
    reported = run("report", tmp_path / "model", "--out", tmp_path / "report.html")
    assert reported.exit_code == 0, reported.output
    assert "also training rows" not in reported.output


def test_a_table_without_copies_is_split_as_the_seed_says():
    from vhat.cli.training_rows import _whole_groups

    order = np.random.default_rng(3).permutation(12)
    assert np.array_equal(np.flatnonzero(_whole_groups(np.arange(12), order, 4)), np.sort(order[:4]))
    groups = np.arange(12) // 3
    held = _whole_groups(groups, order, 7)
    assert held.sum() == 6
    assert all(len(set(held[groups == group])) == 1 for group in range(4))
