"""Training rows are refused as held-out rows; copies that rounding of the table explains are not."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import vhat
from vhat.variance import repeated_rows as rule

REMEDY = "Give others."


def problem_of(X, y):
    theta = np.linalg.lstsq(X, y, rcond=None)[0]
    return vhat.from_numpy(lambda q, X: X @ q, theta, X, y, weight_decay=0.0).problem


def coarse(rng, rows):
    """Ratings of one to three by grades of one to four: some rows repeat by chance."""
    X = rng.integers(1, 5, size=(rows, 4)).astype(float)
    return X, np.round(X @ [1.0, 0.5, 0.0, 0.0] + 0.3 * rng.standard_normal(rows), 1)


def smooth(rng, rows):
    X = rng.normal(size=(rows, 3))
    return X, X @ [1.0, 2.0, 3.0] + rng.standard_normal(rows)


def refused(problem, X, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vhat.CalibrationWarning)
        try:
            rule.refuse_training_rows(problem, X, y[:, None], kind="held-out", remedy=REMEDY)
        except vhat.InputError:
            return True
    return False


@pytest.mark.parametrize("draw", [coarse, smooth])
def test_the_training_table_and_its_parts_are_refused(draw):
    X, y = draw(np.random.default_rng(0), 200)
    problem = problem_of(X, y)
    for rows in (slice(None), slice(50), np.random.default_rng(1).permutation(200)):
        with pytest.raises(vhat.InputError, match=r"every held-out row is also a training row.* Give others\."):
            rule.refuse_training_rows(problem, X[rows], y[rows, None], kind="held-out", remedy=REMEDY)


@pytest.mark.parametrize("draw", [coarse, smooth])
def test_a_file_that_is_partly_the_training_table_is_refused(draw):
    rng = np.random.default_rng(2)
    X, y = draw(rng, 300)
    problem = problem_of(X[:200], y[:200])  # and the whole file, or a split with another seed, is offered
    assert refused(problem, X, y)
    other = rng.permutation(300)[:100]
    assert refused(problem, X[other], y[other])


def test_fresh_rows_of_a_coarse_table_are_taken_though_some_repeat():
    """At most one table in a hundred is refused: of 200, at most six (a binomial tail of 0.4%)."""
    rng, repeated, count = np.random.default_rng(3), [], 0
    for _ in range(200):
        X, y = coarse(rng, 200)
        problem = problem_of(X, y)
        Z, z = coarse(rng, 60)
        count += refused(problem, Z, z)
        repeated.append(len(rule.repeated_rows(problem, Z, z[:, None])))
    assert np.mean(repeated) > 3  # else nothing was tested
    assert count <= 6


def test_a_few_copies_are_warned_of_by_name_and_counted():
    rng = np.random.default_rng(4)
    X, y = smooth(rng, 100)
    Z, z = smooth(rng, 50)
    Z[[3, 7]], z[[3, 7]] = X[:2], y[:2]
    with pytest.warns(vhat.CalibrationWarning, match=r"2 of 50 held-out rows are also training rows.*rows 3, 7"):
        assert rule.refuse_training_rows(problem_of(X, y), Z, z[:, None], kind="held-out", remedy=REMEDY) == 2


@pytest.mark.parametrize("exact", [True, False])
def test_chance_is_that_of_dealing_all_rows_out_again(exact, monkeypatch):
    """Compared with 4,000 random deals of the rows of both tables."""
    rng = np.random.default_rng(6)
    pool = np.concatenate([np.repeat(np.arange(80), rng.integers(1, 5, 80)), 1000 + np.arange(101)])
    share = 0.25
    deals = [rng.random(len(pool)) < share for _ in range(4000)]
    counts = np.array([np.isin(pool[held], pool[~held]).sum() for held in deals])
    size = np.array([held.sum() for held in deals])
    usual = size == round(share * len(pool))  # the share that is read off the tables is the one of the deals
    observed = int(np.quantile(counts, 0.9))
    held = deals[int(np.argmax(usual & (counts == observed)))]
    if not exact:
        monkeypatch.setattr(rule, "_MOST_EXACT", 0)
    found = rule._chance(pool[held].tolist(), pool[~held].tolist())
    assert found == pytest.approx(np.mean(counts >= observed), abs=4 * np.sqrt(0.1 * 0.9 / 4000))


def test_digests_tell_rows_apart_as_their_numbers_do():
    rng = np.random.default_rng(5)
    X, y = coarse(rng, 200)
    problem = problem_of(X, y)
    found = rule.row_digests(problem, X, y[:, None])
    assert len(set(found.tolist())) == len(np.unique(np.column_stack([X, y]), axis=0))
    assert not rule.is_more_than_chance(rule.row_digests(problem, X + 0.25, y[:, None]), found)
    assert rule.is_more_than_chance(found[::-1][:20], found)


def test_a_value_with_thousands_of_copies_is_counted_and_an_honest_coarse_table_is_not_refused():
    from vhat.variance.repeated_rows import _explained

    assert _explained([0] * 30, [0] * 1200 + [1] * 3)
    rng = np.random.default_rng(0)
    refused = [
        not _explained(rng.integers(40, size=100).tolist(), rng.integers(40, size=600).tolist()) for _ in range(50)
    ]
    assert sum(refused) <= 3
    assert not _explained([1, 2], [1, 2, 3])  # distinct rows, all of them known


def test_the_keys_of_each_table_are_made_once(monkeypatch):
    rng = np.random.default_rng(7)
    X, y = smooth(rng, 100)
    Z, z = smooth(rng, 50)
    Z[3], z[3] = X[0], y[0]
    found = rule._row_keys
    made = []
    monkeypatch.setattr(rule, "_row_keys", lambda *table: made.append(len(table[2])) or found(*table))
    with pytest.warns(vhat.CalibrationWarning, match="1 of 50"):
        assert rule.refuse_training_rows(problem_of(X, y), Z, z[:, None], kind="held-out", remedy=REMEDY) == 1
    assert sorted(made) == [50, 100]
