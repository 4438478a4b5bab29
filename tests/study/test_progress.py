"""Progress inside a cell of the study: what its process reports, and what the run shows of it."""

from __future__ import annotations

import io
import sys

import pytest

from vhat.progress import bar, listen
from vhat.study import cell_progress
from vhat.study.cell import Cell
from vhat.study.cell_progress import Display, FitCounter, Report, parse, send
from vhat.study.protocol import fits_of
from vhat.study.run import run
from vhat.study.worker import compute

CELL = Cell("published", "matern", 10, 100, 1e-3, "bootstrap", 0, 2)


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_who_listens_hears_every_bar_and_nothing_is_shown(capsys):
    heard = []
    with listen(lambda *step: heard.append(step)), bar("fits", 2) as outer:
        with bar("AdamW", 3) as inner:
            inner("loss 1")
            inner("")
        outer("")
    assert heard == [("AdamW", 1, 3, "loss 1"), ("AdamW", 2, 3, ""), ("fits", 1, 2, "")]
    assert capsys.readouterr().err == ""


def test_fits_are_counted_and_the_time_left_follows_from_those_trained():
    """Eleven fits of four chunks, one second a chunk: the fit to the data and ten that a bar counts."""
    clock, reports = Clock(), []
    counter = FitCounter(11, reports.append, clock)
    for fit in range(11):
        for chunk in range(1, 5):
            clock.now += 1.0
            counter("AdamW", chunk, 4, "loss 1")
            assert reports[-1].fits == fit
            assert reports[-1].share == pytest.approx((fit + chunk / 4) / 11)
            if (fit, chunk) != (10, 4):
                assert reports[-1].left == pytest.approx(44 - clock.now)
        if fit:
            counter("fits", fit, 10, "")
    clock.now += 1.0
    counter("points", 1, 3, "")
    assert reports[-1] == Report(11, 11, "points 1/3", 1.0, None)


def test_fits_that_were_loaded_do_not_shorten_the_time_left():
    clock, reports = Clock(), []
    counter = FitCounter(11, reports.append, clock)
    for loaded in range(1, 6):
        counter("fits", loaded, 10, "")
    for chunk in range(1, 5):
        clock.now += 1.0
        counter("AdamW", chunk, 4, "")
    assert reports[-1].fits == 6
    assert reports[-1].left == pytest.approx(4 * 4.0)


def test_reports_are_no_more_than_two_a_second():
    clock, reports = Clock(), []
    counter = FitCounter(1, reports.append, clock)
    for chunk in range(1, 101):
        clock.now += 0.1
        counter("AdamW", chunk, 100, "")
    assert 15 <= len(reports) <= 21


def test_a_report_is_read_back_and_other_lines_are_none():
    stream, report = io.StringIO(), Report(3, 11, "AdamW 2/20, loss 1e-3", 0.3, 61.0)
    send(report, stream)
    assert parse(stream.getvalue()) == report
    assert parse("Traceback (most recent call last):\n") is None
    assert parse(stream.getvalue()[:30]) is None
    assert str(report) == "3 of 11 fits done, AdamW 2/20, loss 1e-3, about 1 min of training left"


def test_where_there_is_no_terminal_a_line_comes_once_a_minute(monkeypatch):
    clock, said = Clock(), []
    monkeypatch.setattr(cell_progress.time, "monotonic", clock)
    with Display(said.append, live=False) as display:
        display.begin("cell")
        for _ in range(200):
            clock.now += 1.0
            display.show("cell", Report(1, 11, "AdamW 2/20", 0.1, None))
        display.end("cell")
        display.show("cell", Report(1, 11, "too late", 0.1, None))
    assert said == ["cell: 1 of 11 fits done, AdamW 2/20"] * 3


def test_on_a_terminal_each_cell_under_way_has_a_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    terminal, said = sys.stderr, []
    with Display(said.append) as display:
        for key in ("one", "two"):
            display.begin(key)
            display.show(key, Report(1, 11, f"AdamW 2/20 of {key}", 0.1, 30.0))
        display._bars.refresh()
        display.end("one")
        display.show("one", Report(1, 11, "too late", 0.1, 30.0))
    assert "AdamW 2/20 of one" in terminal.getvalue()
    assert "AdamW 2/20 of two, about 30 s of training left" in terminal.getvalue()
    assert "too late" not in terminal.getvalue()
    assert said == []


def test_the_number_of_fits_is_that_of_the_method():
    assert fits_of(CELL) == 11
    assert fits_of(Cell("published", "matern", 10, 100, 1e-3, "proposed", 0)) == 1
    assert fits_of(Cell("published", "matern", 10, 100, 1e-3, "deep-ensemble", 0)) == 5


@pytest.mark.slow
def test_a_cell_reports_from_its_process_and_the_words_of_a_crash_are_free_of_reports(tmp_path):
    reports = []
    text = compute(CELL, tmp_path, reports.append)
    assert text == compute(CELL, tmp_path)
    assert {report.of for report in reports} == {11}
    done = [report.fits for report in reports]
    assert done == sorted(done)
    assert done[-1] > 0


@pytest.mark.slow
def test_two_cells_at_once_both_say_how_far_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(cell_progress, "_LINE_SECONDS", 0.0)
    cells = [Cell("published", "matern", 10, 100, 1e-3, "bootstrap", trial, 2) for trial in range(2)]
    said = []
    done = run(cells, tmp_path, jobs=2, say=said.append)
    assert set(done.computed) == set(cells)
    for cell in cells:
        assert any(line.startswith(f"{cell.key}: ") and "of 11 fits done" in line for line in said)
