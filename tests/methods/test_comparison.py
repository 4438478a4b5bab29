"""Methods side by side, each number against one computed by hand."""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

import vhat
from tests.methods.cases import ridge, torch_recipe
from vhat.errors import InputError

rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, size=(50, 2))
BETA = np.array([1.0, -2.0])
y = X @ BETA + 0.1 * rng.normal(size=50)


def truth(x):
    return x @ BETA


@dataclass(frozen=True)
class Constant:
    """An interval of a given half width about the mean of the training responses; it remembers nothing."""

    half: float
    interrupts: bool = False

    def fit(self, recipe, X, y, *, seed=0):
        if self.interrupts:
            signal.raise_signal(signal.SIGINT)
        middle = float(np.mean(y))

        def interval(x, delta=0.05, *, target="mean"):
            center = np.full(len(x), middle)
            return SimpleNamespace(center=center, lower=center - self.half, upper=center + self.half)

        return SimpleNamespace(interval=interval)


@dataclass(frozen=True)
class Refusing:
    def fit(self, recipe, X, y, *, seed=0):
        raise InputError("it needs three columns.")


def test_every_measure_is_that_of_the_held_out_rows():
    pairs = [(np.arange(10, 50), np.arange(10)), (np.arange(40), np.arange(40, 50))]
    found = vhat.compare({"c": Constant(0.8)}, X, y, recipe=None, splits=pairs, delta=0.2)
    assert found.target == "observation"
    for outcome, (train, held) in zip(found.outcomes, pairs, strict=True):
        low, high = y[train].mean() - 0.8, y[train].mean() + 0.8
        misses = np.maximum(low - y[held], 0) + np.maximum(y[held] - high, 0)
        assert outcome.coverage == np.mean((low <= y[held]) & (y[held] <= high))
        assert outcome.mean_width == pytest.approx(1.6)
        assert outcome.winkler == pytest.approx(np.mean(1.6 + 10 * misses))
        assert outcome.fit_seconds >= 0
        assert outcome.interval_seconds >= 0
    assert found.summary().loc["c", "coverage"] == pytest.approx(np.mean([o.coverage for o in found.outcomes]))
    assert list(found.table["split"]) == [0, 1]


def test_a_known_truth_judges_intervals_for_the_mean():
    points = np.random.default_rng(1).uniform(-1, 1, size=(30, 2))
    found = vhat.compare([vhat.methods.Wald()], X, y, recipe=ridge(1e-3), truth=truth, test=points, splits=1)
    band = vhat.methods.Wald().fit(ridge(1e-3), X, y).interval(points)
    assert found.target == "mean"
    assert found.outcomes[0].coverage == np.mean((band.lower <= truth(points)) & (truth(points) <= band.upper))
    assert found.outcomes[0].median_width == pytest.approx(np.median(band.upper - band.lower), rel=1e-9)


def test_a_refusal_is_a_row_and_the_others_go_on():
    found = vhat.compare([Refusing(), Constant(1.0)], X, y, recipe=None, splits=1)
    assert [o.status for o in found.outcomes] == ["refused", "answered"]
    assert "three columns" in repr(found)
    assert np.isnan(found.summary().loc["Refusing", "coverage"])


def test_a_method_that_refuses_some_splits_says_how_many():
    @dataclass(frozen=True)
    class Picky:
        def fit(self, recipe, X, y, *, seed=0):
            return (Constant(1.0) if len(y) > 30 else Refusing()).fit(recipe, X, y, seed=seed)

    rows = [(np.arange(40), np.arange(40, 50)), (np.arange(20), np.arange(20, 50))]
    found = vhat.compare({"picky": Picky()}, X, y, recipe=None, splits=rows)
    assert found.summary().loc["picky", "answered"] == 1
    assert "picky (1 of 2 splits): it needs three columns." in repr(found)


def test_means_over_fewer_splits_are_marked_in_table_and_picture():
    @dataclass(frozen=True)
    class Picky:
        def fit(self, recipe, X, y, *, seed=0):
            return (Constant(1.0) if len(y) > 30 else Refusing()).fit(recipe, X, y, seed=seed)

    rows = [(np.arange(40), np.arange(40, 50)), (np.arange(20), np.arange(20, 50)), (np.arange(10, 50), np.arange(10))]
    found = vhat.compare({"picky": Picky(), "c": Constant(2.0), "no": Refusing()}, X, y, recipe=None, splits=rows)
    lines = repr(found).splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["picky*", "c", "no"]
    assert lines[5] == "* picky: over 2 of 3 splits"
    written = [text.get_text() for text in found.plot().texts]
    assert {"picky*", "c"} <= set(written)
    assert "* picky: over 2 of 3 splits\nno is not drawn: refused" in written


@pytest.mark.parametrize(
    "error", [ValueError("shapes (28,1) (48,1)"), np.linalg.LinAlgError("singular"), MemoryError()]
)
def test_an_error_of_any_kind_is_a_failed_row_and_the_others_go_on(error):
    @dataclass(frozen=True)
    class Breaking:
        def fit(self, recipe, X, y, *, seed=0):
            raise error

    found = vhat.compare({"a": Constant(1.0), "bad": Breaking(), "b": Constant(2.0)}, X, y, recipe=None, splits=2)
    assert [o.status for o in found.outcomes] == ["answered", "failed", "answered"] * 2
    said = f"{type(error).__name__}: {error}" if str(error) else "MemoryError"
    assert found.outcomes[1].reason == said
    assert f"bad: {said}" in repr(found)
    assert repr(found).splitlines()[3].split() == ["bad", "failed"]
    assert found.summary().loc["bad", "answered"] == 0


def test_a_recipe_that_works_in_place_changes_no_other_methods_data():
    import torch

    def doubles(X, y, *, seed, sample_weight=None):
        X *= 2.0
        return ridge(1e-3)(X, y, seed=seed)

    def centres(X, y, *, seed, sample_weight=None):
        tensor = torch.as_tensor(X)  # which shares its memory with X
        tensor.sub_(tensor.mean(0))
        return ridge(1e-3)(tensor.numpy(), y, seed=seed)

    @dataclass(frozen=True)
    class Scribbling:
        def fit(self, recipe, X, y, *, seed=0):
            X += 5.0
            y *= 0.0
            return Constant(1.0).fit(recipe, X, y, seed=seed)

    wald, kept = vhat.methods.Wald(), (X.copy(), y.copy())
    others = {"doubles": vhat.methods.WithRecipe(wald, doubles), "centres": vhat.methods.WithRecipe(wald, centres)}
    points = {"truth": truth, "test": X[:5].copy()}
    for options in ({}, points):
        alone = vhat.compare({"wald": wald}, X, y, recipe=ridge(1e-3), splits=2, **options)
        after = vhat.compare(
            {**others, "scribbles": Scribbling(), "wald": wald}, X, y, recipe=ridge(1e-3), splits=2, **options
        )
        assert [o.winkler for o in alone.outcomes] == [o.winkler for o in after.outcomes if o.method == "wald"]
        assert {o.status for o in after.outcomes if o.method in others} == {"refused"}  # they are told
        assert "changed X in place" in repr(after)
    np.testing.assert_array_equal(X, kept[0])
    np.testing.assert_array_equal(y, kept[1])


def test_standard_errors_are_those_of_splits_and_there_are_none_where_only_seeds_differ():
    methods = {"boot": vhat.methods.Bootstrap(resamples=5)}
    apart = vhat.compare(methods, X, y, recipe=ridge(1e-3), splits=3)
    scores = [o.winkler for o in apart.outcomes]
    assert apart.summary().loc["boot", "winkler_error"] == pytest.approx(np.std(scores, ddof=1) / np.sqrt(3))
    seeds = vhat.compare(methods, X, y, recipe=ridge(1e-3), truth=truth, test=X[:9], splits=3)
    assert np.ptp([o.winkler for o in seeds.outcomes]) > 0
    assert np.isnan(seeds.summary().loc["boot", "winkler_error"])
    assert np.isnan(seeds.summary().loc["boot", "coverage_error"])


def test_points_without_limits_are_misses_and_leave_no_width_to_boast_of():
    @dataclass(frozen=True)
    class Holey:
        def fit(self, recipe, X, y, *, seed=0):
            def interval(x, delta=0.05, *, target="mean"):
                low = np.where(np.arange(len(x)) < 4, np.nan, -9.0)
                return SimpleNamespace(center=np.zeros(len(x)), lower=low, upper=-low)

            return SimpleNamespace(interval=interval)

    found = vhat.compare([Holey(), Constant(9.0)], X, y, recipe=None, splits=1)
    assert [each.status for each in found.outcomes] == ["incomplete", "answered"]
    assert found.outcomes[0].coverage == 0.6
    assert np.isnan(found.outcomes[0].median_width)
    assert "4 of 10 predictions have no interval" in repr(found)
    written = [text.get_text() for text in found.plot().texts]
    assert {"Holey", "Constant"} & set(written) == {"Constant"}
    assert "Holey is not drawn: points without an interval in 1 of 1 splits" in written


def test_time_and_memory_are_those_of_the_work():
    """A method that is busy for a fifth of a second, sleeps for as long and holds 60 MB is measured to have done so."""

    taken = []

    @dataclass(frozen=True)
    class Busy:
        def fit(self, recipe, X, y, *, seed=0):
            end = time.process_time() + 0.2
            while time.process_time() < end:
                pass
            before = time.process_time()
            held = np.ones(7_500_000)
            taken.append(time.process_time() - before)  # pages cost what the system makes them cost
            time.sleep(0.2)
            return Constant(1.0 + 0 * held[0]).fit(recipe, X, y, seed=seed)

    (outcome,) = vhat.compare([Busy()], X, y, recipe=None, splits=1).outcomes
    assert outcome.fit_seconds >= 0.4
    assert 0.2 <= outcome.cpu_seconds - taken[0] <= 0.2 + 0.3  # and the intervals' own
    assert outcome.interval_seconds < 0.3
    assert np.isnan(outcome.peak_megabytes) or 55 < outcome.peak_megabytes < 90


def test_a_method_with_its_own_recipe_goes_by_its_own_name():
    own = vhat.methods.WithRecipe(vhat.methods.Wald(), ridge(1e-3))
    found = vhat.compare([own, vhat.methods.Proposed()], X, y, recipe=ridge(1e-3), splits=1)
    assert found.methods == ("Wald", "Proposed")


def test_splits_and_seeds_are_the_same_for_all_methods_and_in_every_run():
    methods = [vhat.methods.Bootstrap(resamples=4), Constant(1.0)]
    first, again = (vhat.compare(methods, X, y, recipe=ridge(1e-3), splits=2, seed=3) for _ in range(2))
    other = vhat.compare(methods[:1], X, y, recipe=ridge(1e-3), splits=2, seed=3, n_jobs=2)
    alone = [o for o in first.outcomes if o.method == "Bootstrap"]
    measures = ("coverage", "mean_width", "median_width", "winkler")
    for name in measures:
        assert [getattr(o, name) for o in first.outcomes] == [getattr(o, name) for o in again.outcomes]
        assert [getattr(o, name) for o in alone] == [getattr(o, name) for o in other.outcomes]


def test_an_interruption_keeps_what_was_compared():
    with pytest.raises(vhat.Interrupted) as stop:
        vhat.compare({"a": Constant(1.0), "b": Constant(1.0, interrupts=True)}, X, y, recipe=None, splits=1)
    assert threading.current_thread() is threading.main_thread()
    assert [o.method for o in stop.value.record.outcomes] == ["a"]


def test_a_users_own_torch_loop_is_bootstrapped_and_compared():
    """The bootstrap's coverage is that of refits of the very loop to rows drawn with replacement."""
    x = np.linspace(-1, 1, 25)[:, None]
    z = np.sin(3 * x[:, 0]) + 0.1 * np.random.default_rng(2).normal(size=25)
    train, held = np.arange(0, 25, 2), np.arange(1, 25, 2)

    wald = vhat.methods.Wald(covariance="hc0")
    methods = [wald, vhat.methods.DeepEnsemble(members=2), vhat.methods.Bootstrap(resamples=3)]
    found = vhat.compare(
        methods, x, z, recipe=torch_recipe, truth=lambda x: np.sin(3 * x[:, 0]), splits=[(train, held)], delta=0.2
    )
    assert [each.status for each in found.outcomes] == ["answered"] * 3
    outcome = found.outcomes[-1]
    again = vhat.methods.Bootstrap(resamples=3).fit(torch_recipe, x[train], z[train], seed=outcome.seed)
    refits = [
        torch_recipe(x[train], z[train], seed=outcome.seed, sample_weight=counts) for counts in again.resampled.weights
    ]
    draws = [refit.predict(x[held])[:, 0] for refit in refits]
    lower, upper = np.quantile(draws, [0.1, 0.9], axis=0)
    np.testing.assert_allclose(outcome.interval.lower[:, 0], lower, rtol=1e-6)
    assert outcome.median_width == pytest.approx(np.median(upper - lower), rel=1e-6)
    mean = np.sin(3 * x[held, 0])
    assert outcome.coverage == np.mean((lower <= mean) & (mean <= upper))


def test_two_methods_of_a_kind_are_numbered():
    found = vhat.compare([Constant(1.0), Constant(2.0)], X, y, recipe=None, splits=1)
    assert found.methods == ("Constant 1", "Constant 2")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"methods": []}, "no method"),
        ({"methods": [Constant]}, "Constant"),
        ({"target": "mean"}, "needs truth"),
        ({"y": y[:-1]}, r"\(50, 2\) and y has shape \(49,\)"),
        ({"y": np.where(np.arange(50) == 3, np.nan, y)}, "y"),
        ({"test": X}, "pair"),
        ({"splits": 0}, "splits"),
        ({"splits": []}, "no pair"),
        ({"splits": [(np.arange(40), np.arange(30, 50))]}, "split 0 has test rows that are also training rows"),
        ({"splits": [(np.arange(40), np.arange(40, 51))]}, "numbers below 50"),
        ({"splits": [(np.arange(40), [0.5])]}, "numbers below 50"),
        ({"test": (X[:3, :1], y[:3])}, r"points of shape \(1,\)"),
        ({"test": (X[:3], y[:2])}, r"shape \(2,\) for 3 points"),
        ({"truth": lambda x: np.add.outer(x[:, 0], x[:, 1])}, r"shape \(10, 10\) for 10 points"),
        ({"truth": lambda x: x[:, 0] * np.nan}, "NaN"),
        ({"n_jobs": 0}, "n_jobs=0"),
        ({"X": X[:2], "y": y[:2]}, "too few"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_words(change, words):
    arguments = {"methods": [Constant(1.0)], "X": X, "y": y, "splits": 1} | change
    with pytest.raises(InputError, match=words):
        vhat.compare(arguments.pop("methods"), arguments.pop("X"), arguments.pop("y"), recipe=None, **arguments)


def test_pictures_are_drawn_and_a_gallery_wants_one_input():
    line = np.linspace(-1, 1, 40)[:, None]
    found = vhat.compare(
        {"narrow": Constant(0.5), "wide": Constant(50.0)}, line, 2 * line[:, 0], recipe=None, test=(line, line[:, 0])
    )
    assert {text.get_text() for text in found.plot().texts} >= {"narrow", "wide"}
    titles = [axis.get_title(loc="left") for axis in found.gallery(truth=lambda x: x[:, 0]).axes]
    assert titles == ["narrow", "wide"]
    with pytest.raises(InputError, match="one input"):
        vhat.compare([Constant(1.0)], X, y, recipe=None, splits=1).gallery()


def test_a_refusal_is_written_into_its_panel():
    line = np.linspace(-1, 1, 40)[:, None]
    found = vhat.compare([Refusing(), Constant(0.5)], line, line[:, 0], recipe=None, test=(line, line[:, 0]), splits=1)
    refused, drawn = found.gallery().axes
    assert [text.get_text() for text in refused.texts] == ["it needs three columns."]
    assert len(drawn.collections) == 1
    none = vhat.compare([Refusing()], line, line[:, 0], recipe=None, test=(line, line[:, 0]), splits=1)
    with pytest.raises(InputError, match="every method refused"):
        none.gallery()
    with pytest.raises(InputError, match="no method answered"):
        none.plot()


def test_calibration_of_exact_quantiles_is_within_binomial_error():
    from scipy.stats import norm

    responses = np.random.default_rng(5).normal(size=2000)

    def interval(delta):
        q = norm.isf(delta / 2)
        return SimpleNamespace(lower=np.full(2000, -q), upper=np.full(2000, q))

    found = vhat.metrics.calibration(interval, responses)
    assert np.all(np.abs(found.coverage - (1 - found.delta)) < 3.5 * found.error)
    short = vhat.metrics.calibration(lambda delta: interval(min(3 * delta, 0.9)), responses)
    assert short.worst > 0.1
