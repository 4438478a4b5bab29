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


def test_names_in_a_crowd_cover_neither_each_other_nor_a_mark():
    rng = np.random.default_rng(0)
    names = [f"method number {i}" for i in range(16)]
    widths, coverages = np.exp(rng.normal(0, 0.2, 16)), rng.uniform(0.8, 1.0, 16)
    ax = plot.coverage_plane(names, widths, coverages, level=0.95)
    ax.figure.canvas.draw()
    boxes = [text.get_window_extent() for text in ax.texts if text.get_text() in names]
    marks = ax.transData.transform(np.column_stack([widths, 100 * coverages]))
    assert len(boxes) == 16
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert not any(box.contains(*mark) for box in boxes for mark in marks)
    assert all(ax.bbox.x0 <= box.x0 and box.x1 <= ax.bbox.x1 for box in boxes)


def test_a_gallery_has_one_frame_for_all_that_the_widest_band_does_not_stretch():
    x = np.linspace(-1, 1, 21)
    bands = {f"band {i}": Result(0 * x, 0 * x - 1, 0 * x + 1) for i in range(5)}
    bands["wide"] = Result(0 * x, 0 * x - 100, 0 * x + 100)
    figure = plot.gallery(bands, x, truth=2 * x, data=(x, 3 * x), notes={"wide": "covers all"}, columns=4)
    shown = [axis for axis in figure.axes if axis.get_visible()]
    assert len(shown) == 6
    assert len({axis.get_ylim() for axis in shown}) == len({axis.get_xlim() for axis in shown}) == 1
    low, high = shown[0].get_ylim()
    assert low < -3 < 3 < high < 10  # truth and data whole, the widest band cut
    assert shown[-1].get_title(loc="right") == "covers all"
    below = [axis for axis in shown if axis.get_xlabel()]
    assert [axis.get_title(loc="left") for axis in below] == ["band 2", "band 3", "band 4", "wide"]
