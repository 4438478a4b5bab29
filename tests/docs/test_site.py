"""The pages of the documentation: their examples run and show what the text says, and the site has all of them."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from importlib.util import find_spec

import cloudpickle
import numpy as np
import pandas as pd
import pytest
import yaml

import vhat
from tests.docs.test_docs import DOCS, run

ROOT = DOCS.parent
MEASURED = ("results", "table_errors", "tables")
"""The pages of benchmarks/ on the site; the tables of the others are in docs/benchmarks.md."""
OUTSIDE = ("CHANGELOG.md", "CONTRIBUTING.md", *(f"benchmarks/{name}.md" for name in MEASURED))


def test_the_torch_page_deploys_the_parameters_that_its_intervals_are_about(capsys):
    names = run("start-torch.md")
    assert names["audit"]["stationarity"].verdict == "fails"
    assert names["fitted"].audit()["stationarity"].verdict == "holds"
    assert float(names["gap"]) < 1e-5
    assert names["band"].abstain(max_half_width=0.5).ravel().tolist() == [False, False, True]
    assert "moved noted" in capsys.readouterr().out


def test_the_jax_page_loads_what_it_saved():
    names = run("start-jax.md")
    assert names["band"].center.shape == (5,)
    assert names["size"].center == pytest.approx(np.sum(np.asarray(names["fitted"].params["v"]) ** 2))
    np.testing.assert_array_equal(names["again"].predict(names["X"]), names["fitted"].predict(names["X"]))
    assert (bool(names["inside"]), bool(names["beyond"])) == (False, True)


def test_the_scipy_page_has_the_standard_errors_of_scipy():
    names = run("start-scipy.md")
    np.testing.assert_allclose(names["classical"].standard_error, np.sqrt(np.diag(names["pcov"])), rtol=1e-3)
    errors = names["known"].functional(lambda q: q, curvature="ggn", noise=names["sigma"]).standard_error
    np.testing.assert_allclose(errors, np.sqrt(np.diag(names["covariance"])), rtol=1e-3)
    assert np.all(names["new"].half_width > 2 * names["band"].half_width)
    assert names["half_life"].center == pytest.approx(np.log(2) / names["popt"][1])
    assert names["model"].audit().holds


def test_the_table_page_answers_in_the_units_of_its_table():
    names = run("start-table.md")
    assert np.all(np.abs(names["band"].center - names["warmth"][:3]) < 1.5)
    assert names["left_out"].residual.std() == pytest.approx(0.3, rel=0.35)
    assert names["network"].audit().holds


def test_the_page_on_curve_fit_has_the_band_of_the_delta_method():
    names = run("confidence-band-curve-fit.md")
    np.testing.assert_allclose(names["same"].half_width, names["by_hand"], rtol=1e-4)
    assert names["audit"].holds
    widths = [names[band].half_width for band in ("band", "whole", "new")]
    assert np.all(widths[0] < widths[1])  # one point, the whole curve
    assert np.all(widths[0] < widths[2])  # the curve, a measurement


@pytest.mark.slow
def test_the_page_on_mlpregressor_covers_new_responses_in_three_ways():
    names = run("prediction-intervals-mlpregressor.md")
    test = names["y_test"]
    # 125 new rows at 90%: binomial error of 2.7 points, and as much of the calibration
    for band in (
        names["network"].predict_interval(names["X_test"], 0.1, target="observation"),
        names["own"],
        names["band"],
    ):
        assert vhat.metrics.coverage(band.lower, band.upper, test) == pytest.approx(0.9, abs=0.12)
    moved = np.abs(names["fitted"].predict(names["inputs"]) - names["mlp"].predict(names["inputs"])).max()
    assert moved < 0.05 * test.std()  # the page: hardly
    np.testing.assert_allclose(
        names["tangent"].predict(names["X_fit"]), names["usual"].predict(names["X_fit"]), rtol=1e-6, atol=1e-6
    )
    assert np.all(names["positive"].lower > -1)


def test_the_page_on_reading_shows_what_is_printed(capsys):
    names = run("reading.md")
    printed = capsys.readouterr().out
    (shown,) = re.findall(r"```text\n(.*?)```", (DOCS / "reading.md").read_text(), re.DOTALL)
    for line in shown.splitlines():
        assert line in printed, line
    assert names["audit"].holds
    ratio = names["band"].half_width / names["band"].standard_error
    np.testing.assert_allclose(ratio, 2.31, atol=0.005)  # the page: 2.31, between Student's 2.01 and tight's 2.7


def test_the_page_on_reading_has_every_line_of_the_audit():
    names = run("reading.md")
    text = (DOCS / "reading.md").read_text()
    rows = {name.strip() for cells in re.findall(r"^\| ([a-z, ]+) \|", text, re.MULTILINE) for name in cells.split(",")}
    assert {line.name for line in names["audit"]} | {"moved"} <= rows


@pytest.mark.slow
def test_the_sharp_bits_are_told_as_the_page_says(capsys):
    names = run("sharp-bits.md")
    printed = capsys.readouterr().out
    shown = re.findall(r"```text\n(.*?)```", (DOCS / "sharp-bits.md").read_text(), re.DOTALL)
    assert len(shown) > 10
    for line in re.sub(r"\n +", " ", "".join(shown)).splitlines():  # a line that is indented continues the one above
        assert line in printed, line
    assert saturating_at(0.1) < names["line"].interval([0.1]).lower  # the truth is not in the interval


def saturating_at(x):
    return 3.0 * x / (0.8 + x)


def test_the_page_on_troubles_raises_what_it_names():
    names = run("troubles.md")
    assert "interpolates" in names["why"] or "perfect" in names["why"]
    assert "stationarity fails" in names["message"]


def test_the_page_on_troubles_has_every_error_and_warning_of_the_library():
    described = set(re.findall(r"^### `(\w+)`$", (DOCS / "troubles.md").read_text(), re.MULTILINE))
    kinds = {name for name in vhat.__all__ if name in vars(sys.modules["vhat.errors"])}
    assert described == kinds - {"VhatError", "VhatWarning"}


def test_the_mathematics_agree_with_a_refit_and_with_the_larger_matrix():
    names = run("mathematics.md")
    assert names["sensitivity"][7] == pytest.approx(names["moved"][0], rel=1e-4)
    assert names["V"] / 40 == pytest.approx(np.sum(names["sensitivity"] ** 2), rel=1e-9)
    np.testing.assert_allclose(names["J"] @ names["h"], names["t"], rtol=1e-8, atol=1e-10)
    by_kernel = names["kernel_norm"]
    assert by_kernel == pytest.approx(names["fitted"].weighted_norm([2.0], curvature="ggn").value[0], rel=1e-6)


def test_the_page_on_solvers_shows_that_they_agree():
    names = run("solvers.md")
    X, n, p = names["X"], names["n"], names["p"]
    h = np.linalg.solve(X.T @ X / n + 1e-3 * np.eye(p), names["x"].T)
    V = np.sum((X @ h) ** 2, axis=0) / n
    np.testing.assert_allclose(names["exact"], V, rtol=1e-6)
    np.testing.assert_allclose(names["found"].value, V, rtol=1e-5)
    assert "Raise memory=" in names["refused"]
    by_hand = 0.1 * np.linalg.norm(names["new"] @ np.linalg.pinv(names["wide"]), axis=1)
    np.testing.assert_allclose(names["spanned"].standard_error, by_hand, rtol=1e-9)


@pytest.fixture(scope="module")
def scaling():
    """The names of the page on scaling, run once."""
    names = run("scaling.md")
    yield names
    names["place"].cleanup()


class SparkRows:
    """What the page asks of a Spark DataFrame: frames one after the other through a function that was pickled."""

    def __init__(self, frames):
        self.frames = frames

    def mapInPandas(self, function, schema):
        sent = pickle.loads(pickle.dumps(function))
        parts = list(sent(iter(self.frames)))
        names, kinds = zip(*(field.split() for field in schema.split(", ")), strict=True)
        types = {"long": "i", "double": "f", "string": "OTU"}
        for part in parts:
            assert list(part.columns) == list(names)
            assert all(
                part[name].dtype.kind in types[kind] for name, kind in zip(names, kinds, strict=True) if len(part)
            )
        return pd.concat(parts)


class RayRows(SparkRows):
    """What the page asks of a Ray Dataset: frames one by one through a function, which Ray pickles by value."""

    def map_batches(self, function, *, batch_format):
        assert batch_format == "pandas"
        sent = cloudpickle.loads(cloudpickle.dumps(function))
        return pd.concat([sent(frame) for frame in self.frames])


def test_the_recipes_for_spark_and_ray_give_the_intervals_of_the_whole_table(scaling):
    table = scaling["table"].drop(columns="warmth")
    frames = [table[:100], table[:0], table[100:]]
    expected = scaling["network"].predict_interval(table[["depth"]], 0.1, target="observation")
    for found in (scaling["by_spark"](SparkRows(frames)), scaling["by_ray"](RayRows(frames))):
        assert list(found["id"]) == list(table["id"])
        np.testing.assert_allclose(found["lower"].astype(float), expected.lower, rtol=1e-8)
        np.testing.assert_allclose(found["upper"].astype(float), expected.upper, rtol=1e-8)
        assert set(found["status"]) == {"converged"}


def test_the_page_on_scaling_reads_a_loader_and_asks_in_pieces(scaling):
    names = scaling
    assert "drop_last" in names["refused"]
    np.testing.assert_allclose(
        np.concatenate([piece.half_width for piece in names["pieces"]]), names["whole"].half_width, rtol=1e-12
    )


def test_the_page_on_measuring_registers_a_row():
    from benchmarks.registry import ROWS

    try:
        run("measuring.md")
        assert ROWS["my-row"].goal.reached(11)
    finally:
        ROWS.pop("my-row", None)


def test_every_page_is_in_the_navigation_once():
    pages = list(_pages(_configuration()["nav"]))
    there = [path.relative_to(DOCS).as_posix() for path in sorted(DOCS.rglob("*.md"))]
    assert sorted(pages) == sorted([*there, *OUTSIDE])
    assert all((ROOT / name).exists() for name in OUTSIDE)


def test_the_reference_has_every_public_name():
    text = "\n".join(path.read_text() for path in (DOCS / "api").glob("*.md"))
    listed = set(re.findall(r"(?:^::: |`)(vhat\.[\w.]+)", text, re.MULTILINE))
    modules = ("bounds", "fit", "methods", "metrics", "mlflow", "plot", "study")
    wanted = {f"vhat.{name}" for name in vhat.__all__ if name not in modules}
    wanted |= {f"vhat.{module}.{name}" for module in modules for name in getattr(vhat, module).__all__}
    missing = sorted(wanted - listed)
    assert not missing, f"add '::: NAME' to a page of docs/api for each of {missing}"


@pytest.mark.parametrize("page", sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")))
def test_every_page_that_a_page_links_exists(page):
    path = DOCS / page
    prose = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    for target in re.findall(r"(?<!!)\[[^\]]*\]\(([^)#]+\.md)", prose):
        assert (path.parent / target).exists(), target


def _python_with_mkdocs() -> str | None:
    own = ROOT / ".venv-docs" / "bin" / "python"
    if own.exists():
        return str(own)
    return sys.executable if find_spec("mkdocs") else None


@pytest.mark.slow
@pytest.mark.skipif(_python_with_mkdocs() is None, reason="mkdocs is not installed: make docs")
def test_the_site_is_built_without_a_warning_and_fetches_nothing(tmp_path):
    made = subprocess.run(
        [_python_with_mkdocs(), "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={"NO_MKDOCS_2_WARNING": "1", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    assert "WARNING" not in made.stderr
    pages = {path: path.read_text() for path in tmp_path.rglob("*.html")}
    assert len(pages) > 25
    for path, text in pages.items():
        assert not re.findall(r'<(?:script|img|iframe)[^>]* src="(?:https?:)?//', text), path
        assert not re.findall(r'<link[^>]* href="(?:https?:)?//', text), path
        assert "arithmatex" not in text, path
    text = "\n".join(pages.values())
    assert text.count("<math") > 100
    assert all(f'id="vhat.{name}"' in text for name in vhat.__all__)


def _configuration() -> dict:
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def _pages(nav):
    for entry in nav:
        for value in [entry] if isinstance(entry, str) else entry.values():
            yield from [value] if isinstance(value, str) else _pages(value)


def test_the_page_on_messy_tables_reads_them_as_it_says(capsys):
    names = run("messy-tables.md")
    told = {column.name: column.told for column in names["network"].columns_.columns}
    assert told["area"] == "number: decimal comma"
    assert told["city"] == "category: 3 levels"
    assert told["sold"] == "date: day.month.year"
    assert told["garden"] == "yes/no: yes is 1, no is 0"
    assert told["age"].startswith("number: ")
    assert names["coded"].columns_["zone"].told == "category: 3 levels"
    assert names["band"].status.tolist() == ["converged", "unknown level", "converged"]
    assert "center" in capsys.readouterr().out
