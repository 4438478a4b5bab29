import io
import subprocess
import sys
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

from vhat import plot
from vhat.errors import InputError


@dataclass(frozen=True)
class Result:
    center: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


def result(x):
    return Result(np.sin(x), np.sin(x) - 1 - x**2, np.sin(x) + 1 + x**2)


X = np.random.default_rng(0).permutation(np.linspace(-2, 2, 41))


def lines(ax):
    return {line.get_label(): line for line in ax.lines}


@pytest.mark.parametrize("x", [X, X[:, None]])
def test_unsorted_points_are_drawn_in_order(x):
    ax = plot.band(result(X), x, truth=np.cos(X))
    for label, f in (("prediction", np.sin), ("truth", np.cos)):
        drawn_x, drawn_y = lines(ax)[label].get_data()
        np.testing.assert_array_equal(drawn_x, np.sort(X))
        np.testing.assert_array_equal(drawn_y, f(np.sort(X)))
    (shade,) = ax.collections
    vertices = shade.get_paths()[0].vertices
    np.testing.assert_allclose(vertices[:, 1].max(), result(X).upper.max())
    np.testing.assert_allclose(vertices[:, 1].min(), result(X).lower.min())


def test_the_given_axis_is_used_and_returned():
    axis = Figure().add_subplot()
    assert plot.band(result(X), X, axis, legend=False) is axis
    assert axis.get_legend() is None


def test_legend_and_axes_name_everything_drawn():
    ax = plot.band(result(X), X, truth=np.cos(X), data=(X[:5, None], X[:5]), gap=(-0.5, 0.5), label="95%")
    named = {text.get_text() for text in ax.get_legend().get_texts()}
    assert named == {"95%", "prediction", "truth", "data", "no data"}
    assert ax.get_xlabel()
    assert ax.get_ylabel()
    ax.figure.savefig(io.BytesIO())


def test_points_without_limits_are_left_open():
    broken = result(np.sort(X))
    broken.upper[20], broken.lower[20] = np.nan, np.nan
    (shade,) = plot.band(broken, np.sort(X)).collections
    assert len(shade.get_paths()) == 2 or len(shade.get_paths()[0].to_polygons()) == 2


def test_drawing_changes_no_global_state():
    before = dict(mpl.rcParams)
    plot.band(result(X), X)
    assert dict(mpl.rcParams) == before
    code = "import sys, vhat.plot; assert not {'matplotlib', 'jax', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: plot.band(result(X), X[:-1]), "center has 41 points and x has 40"),
        (lambda: plot.band(result(X), np.zeros((41, 2))), "one input"),
        (lambda: plot.band(result(X[:, None] + np.zeros(2)), X), "one output"),
        (lambda: plot.band(result(X), X, truth=X[:3]), "truth has 3 points"),
        (lambda: plot.band(result(X), X, data=(X, X[:3])), "data"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_a_sentence(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()
