"""The study's figures say what they show, what is missing and what was reduced, and draw what was stored."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vhat.errors import InputError
from vhat.study import trade_off as trade_off_module
from vhat.study.delta_per_point import rescore
from vhat.study.experiments import Plan
from vhat.study.figures import bands
from vhat.study.measure import plain, score
from vhat.study.page import PARTS, fill, refresh
from vhat.study.protocol import PROTOCOL, draw, level
from vhat.study.regions import Region, find_regions, to_markdown
from vhat.study.results import Results, to_text
from vhat.study.summary import summarise
from vhat.study.trade_off import trade_off
from vhat.study.whole_study import write_outputs

STUDY = Path(__file__).parents[2] / "study" / "results"


def store(results, cells, *, half=0.3):
    """Write results whose limits are the truth give or take ``half`` (n / 1000 more in each trial)."""
    for cell in cells:
        data = draw(cell)
        wide = half + cell.trial * cell.n / 1000
        test = {name: data.test.truth + shift for name, shift in (("center", 0.0), ("lower", -wide), ("upper", wide))}
        metrics = score(test, data.test, data.train) | {"validation winkler": 1.0}
        test["weighted norm"] = np.ones(len(data.test.truth))
        found = {"protocol": PROTOCOL, "cell": cell.config(), "status": "done", "metrics": metrics, "test": test}
        found["curvature"] = "ggn" if cell.method == "proposed" and cell.version == "published" else ""
        results.write(cell, to_text(plain(found)))


def texts(figure):
    from matplotlib.text import Text

    return "\n".join(text.get_text() for text in figure.findobj(Text))


def drawn_lines(ax, label):
    return [line for line in ax.get_lines() if line.get_label() == label]


def test_figure_1_has_a_row_for_each_method_and_a_column_for_each_n(tmp_path):
    results, plan = Results(tmp_path), Plan("figure1", sizes=(100, 1000, 10_000), versions=("published",))
    cells = plan.cells()
    assert [cell.method for cell in cells if cell.n == 100] == ["proposed", "bootstrap", "paper-cg"]
    store(results, [cell for cell in cells if cell.n == 100 or (cell.n, cell.method) == (1000, "proposed")])
    figure = bands(cells, results)
    shown = texts(figure)
    assert len(figure.axes) == 6  # two methods and their widths; no column for a size without a result
    for said in ("$n = 100$", "$n = 1{,}000$", "proposed", "bootstrap", "Gauss-Newton", "the paper's 1000 CG steps"):
        assert said in shown
    assert shown.count("not computed") == 2  # in the panel, and of n = 10,000 in the caption
    assert "n = 10,000 was not computed" in shown
    assert "Missing" not in shown
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    truth = draw(cells[0]).test.truth
    assert np.ptp(band[:, 1]) == pytest.approx(np.ptp(truth) + 0.6)


def test_under_the_bands_of_figure_1_are_their_widths_of_all_methods(tmp_path):
    results, plan = Results(tmp_path), Plan("figure1", sizes=(100,), versions=("met",))
    store(results, plan.cells(), half=0.2)
    widths = bands(plan.cells(), results).axes[-1]
    assert widths.get_yscale() == "log"
    drawn = [line.get_ydata() for line in widths.get_lines()]
    assert len(drawn) == 2
    np.testing.assert_allclose(drawn, 0.4)


def test_many_data_lie_under_the_band_and_few_above_it(tmp_path):
    results, plan = Results(tmp_path), Plan("figure1", sizes=(100, 10_000), versions=("met",), methods=("proposed",))
    store(results, plan.cells())
    few, many = bands(plan.cells(), results).axes[:2]
    for ax, above in ((few, True), (many, False)):
        (data,) = drawn_lines(ax, "data")
        assert (data.get_zorder() > ax.collections[0].get_zorder()) == above


@pytest.mark.parametrize(("half", "scale"), [(0.3, "linear"), (500.0, "symlog")])
def test_an_axis_shows_bands_whole_however_far_they_reach(tmp_path, half, scale):
    results, plan = Results(tmp_path), Plan("figure1", sizes=(100,), versions=("met",), methods=("proposed",))
    store(results, plan.cells(), half=half)
    ax = bands(plan.cells(), results).axes[0]
    truth = draw(plan.cells()[0]).test.truth
    assert ax.get_yscale() == scale
    low, high = ax.get_ylim()
    assert low < truth.min() - 0.95 * half
    assert high > truth.max() + 0.95 * half
    if scale == "symlog":  # truth and data stay on the linear part
        assert ax.yaxis.get_transform().linthresh > np.abs(truth).max()


def test_decays_whose_points_lie_close_on_paper_share_a_label():
    dots = np.array([[10.0, 50], [14, 50], [18, 52], [60, 50], [60, 20]])
    assert trade_off_module._group_close(dots) == [[0, 1, 2], [3], [4]]
    # a chain of small steps is cut where its end is far from its beginning
    assert trade_off_module._group_close(np.array([[0.0, 0], [9, 0], [18, 0]])) == [[0, 1], [2]]


def test_figure_2_draws_means_with_their_spread_and_labels_every_decay(tmp_path):
    results, plan = Results(tmp_path), Plan("figure2", sizes=(100,), trials=2, versions=("published",), steps=5)
    cells = plan.cells()
    store(results, [cell for cell in cells if cell.d == 10])
    figure = trade_off(summarise(cells, results))
    shown = texts(figure).replace("\n", " ")
    assert "REDUCED: trained for 5 steps" in shown
    assert "Missing" not in shown
    top = figure.axes[0]
    assert [text.get_text() for text in top.texts] == 2 * ["$10^{-6}$ to $10^{-2}$"]  # all decays at one point
    (line,) = drawn_lines(top, "proposed")
    # Widths are 0.6 in trial 0 and 0.6 + 2 * 0.1 in trial 1: mean 0.7, standard deviation 0.1.
    np.testing.assert_allclose(line.get_xdata(), 0.7)
    np.testing.assert_allclose(line.get_ydata(), 100.0)
    assert top.patches[0].width == pytest.approx(2 * 0.1)
    assert "not computed" in texts(figure.axes[1])


@pytest.mark.slow
def test_the_panels_of_figure_2_have_common_axes_and_labels_that_do_not_collide():
    """The committed results of the study, as published: six panels, those of n = 100 with every decay."""
    plan = Plan("figure2", versions=("published",))
    figure = trade_off(summarise(plan.cells(), Results(STUDY)))
    assert len(figure.axes) == 6
    assert len({ax.get_xlim() for ax in figure.axes}) == 1
    assert len({ax.get_ylim() for ax in figure.axes}) == 1
    figure.draw_without_rendering()
    for ax in figure.axes:
        boxes = [text.get_window_extent() for text in ax.texts]
        assert boxes
        for at, box in enumerate(boxes):
            assert not any(box.overlaps(other) for other in boxes[:at])
            assert ax.bbox.x0 <= box.x0
            assert box.x1 <= ax.bbox.x1


def test_outputs_are_pictures_tables_and_the_same_bytes_for_the_same_results(tmp_path):
    results, plan = (
        Results(tmp_path),
        Plan("figure2", sizes=(100,), trials=1, versions=("met",), methods=("bootstrap",)),
    )
    store(results, plan.cells())
    first = {path.name: path.read_bytes() for path in write_outputs(plan, tmp_path)}
    again = {path.name: path.read_bytes() for path in write_outputs(plan, tmp_path)}
    assert set(first) == {"figure2.csv", "selection.md", "figure2-met.png", "figure2-met.pdf"}
    assert first == again
    assert first["figure2-met.png"].startswith(b"\x89PNG")
    assert first["figure2-met.pdf"].startswith(b"%PDF")


def written(out):
    """The tables, texts and pictures of a directory."""
    return {path.name: path.read_bytes() for path in sorted(out.iterdir()) if path.is_file()}


PLANS = [
    Plan("figure2", sizes=(100,), trials=2),
    Plan("table1", sizes=(100,), trials=2),
    Plan("figure1", sizes=(100,), methods=("proposed", "bootstrap")),
]


def store_and_write(out, cells):
    store(Results(out), cells)
    for plan in PLANS:
        write_outputs(plan, out)
    return written(out)


_WRITE = """
import sys
from pathlib import Path
from tests.study.test_figures import PLANS
from vhat.study.whole_study import write_outputs
from vhat.study.page import refresh
for plan in PLANS:
    write_outputs(plan, Path(sys.argv[1]))
refresh(Path(sys.argv[1]) / "page.md", Path(sys.argv[1]))
"""


def test_outputs_do_not_depend_on_the_order_of_computation_the_locale_the_time_or_the_user_s_settings(
    tmp_path, monkeypatch
):
    """Cells written the other way round; then another process with other settings in everything that could matter."""
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    # One trial is missing and one cell of each method has its own width, so that rows could be confused.
    cells = [cell for plan in PLANS for cell in plan.cells() if (cell.method, cell.trial) != ("bootstrap", 1)]
    cells = list(dict.fromkeys(cells))
    page = "λ: <!-- study: figure2-missing -->\n<!-- end -->\n<!-- study: versions -->\n<!-- end -->\n"
    expected = store_and_write(tmp_path / "one", cells)
    assert len(expected) == 4 + 4 + 2 + 3 + 1
    shuffled = [cells[at] for at in np.random.default_rng(0).permutation(len(cells))]
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    assert store_and_write(tmp_path / "other", shuffled) == expected

    for name in ("one", "other"):
        for cell in cells[:1]:  # versions for the page
            path = Results(tmp_path / name).path(cell)
            path.write_text(to_text(json.loads(path.read_text()) | {"versions": {"vhat": "0"}}))
        for cell in cells[1:]:
            Results(tmp_path / name).path(cell).unlink()
        (tmp_path / name / "page.md").write_text(page, encoding="utf-8")
    settings = tmp_path / "matplotlibrc"
    settings.write_text("font.size: 20\nsavefig.dpi: 50\nsavefig.bbox: tight\npdf.compression: 0\nlines.linewidth: 9\n")
    plain = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "1"}
    odd = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TZ": "Asia/Tokyo", "OMP_NUM_THREADS": "2"}
    odd |= {"PYTHONHASHSEED": "2", "MATPLOTLIBRC": str(settings), "SOURCE_DATE_EPOCH": "1"}
    root = Path(__file__).parents[2]
    for name, changes in (("one", plain), ("other", odd)):
        environment = {key: value for key, value in os.environ.items() if key not in plain | odd} | changes
        environment["PYTHONPATH"] = os.pathsep.join([str(root), str(root / "src")])
        command = [sys.executable, "-c", _WRITE, str(tmp_path / name)]
        subprocess.run(command, check=True, env=environment, cwd=tmp_path if name == "other" else root)
    assert written(tmp_path / "other") == written(tmp_path / "one")
    assert "λ: <!-- study" in (tmp_path / "other" / "page.md").read_text(encoding="utf-8")


def test_a_page_s_parts_are_made_anew_and_its_words_are_left(tmp_path):
    results = Results(tmp_path)
    page = "Words.\n<!-- study: figure2-missing -->\nold\n<!-- end -->\nMore words.\n"
    made = fill(page, results)
    assert made.startswith("Words.\n<!-- study: figure2-missing -->\n")
    assert made.endswith("<!-- end -->\nMore words.\n")
    assert "old" not in made
    assert "Missing cells, 600 of 600" in made
    assert fill(made, results) == made


def test_a_page_with_an_unknown_part_or_no_page_is_refused(tmp_path):
    with pytest.raises(InputError, match="table1"):
        fill("<!-- study: table9 -->\n<!-- end -->", Results(tmp_path))
    with pytest.raises(InputError, match="does not exist"):
        refresh(tmp_path / "none.md", tmp_path)


@pytest.mark.parametrize("d", [10, 100])
def test_a_cell_read_again_at_its_own_delta_is_judged_as_it_was(d):
    """The committed results of the study, from their weighted norms alone."""
    experiment = {10: "table1", 100: "table2"}[d]
    plan = Plan(experiment, sizes=(100,), trials=2, methods=("proposed",), versions=("published",), truths=("matern",))
    for cell in plan.cells():
        result = Results(STUDY).read(cell)
        again, wider = rescore(cell, result, level(cell)), rescore(cell, result, level(cell) / 10)
        for name, value in again.items():
            assert value == pytest.approx(result["metrics"][name], rel=1e-9), name
        assert wider["mean width, all"] > 1.05 * again["mean width, all"]


@pytest.mark.parametrize("part", PARTS)
def test_every_part_can_be_made_from_nothing(tmp_path, part):
    assert PARTS[part](Results(tmp_path)).strip()


def test_the_numbers_of_figure_1_are_those_of_each_part_of_the_line():
    """Limits made by hand: widths 1 over the data, 4 in the gap and 6 beyond; in the gap the truth is missed once."""
    cell = Plan("figure1", sizes=(100,), versions=("met",), methods=("proposed",)).cells()[0]
    data = draw(cell)
    x, inputs = data.test.X[:, 0], data.train.X[:, 0]
    in_gap, beyond = np.abs(x) < 0.499, (x < inputs.min()) | (x > inputs.max())
    assert in_gap.sum() == 19
    assert 0 < beyond.sum() < 60
    width = np.where(in_gap, 4.0, np.where(beyond, 6.0, 1.0))
    center = data.test.truth.copy()
    center[np.argmax(in_gap)] += 3.0
    result = {"test": {"lower": center - width / 2, "upper": center + width / 2}}
    over, gap, outside = find_regions(cell, result).values()
    assert (over.points, gap.points, outside.points) == (121 - 19 - beyond.sum(), 19, beyond.sum())
    assert [region.median_width for region in (over, gap, outside)] == pytest.approx([1.0, 4.0, 6.0])
    assert (gap.times(over), outside.times(over)) == pytest.approx((4.0, 6.0))
    assert (over.coverage, gap.coverage, outside.coverage) == (1.0, 18 / 19, 1.0)


def test_a_part_of_the_line_without_points_or_intervals_has_no_number(tmp_path):
    cell = Plan("figure1", sizes=(10_000,), versions=("met",), methods=("proposed",)).cells()[0]
    truth = draw(cell).test.truth
    found = find_regions(cell, {"test": {"lower": np.where(truth > 0, truth, np.nan), "upper": truth}})
    assert found["beyond the data"] == Region(0, None, None)  # ten thousand inputs reach over the whole grid
    assert found["over the data"].median_width is None
    assert 0 < found["over the data"].coverage < 1
    store(Results(tmp_path), [cell])
    lines = [line for line in to_markdown([cell], Results(tmp_path)).splitlines() if line.startswith("|")]
    assert len(lines) == 4  # two of the head, the cell by two bounds
    assert {line.count("|") for line in lines} == {12}
