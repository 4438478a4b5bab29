"""The HTML report on a fitted model: the model, its audit, its intervals, and tests of the intervals on data.

Called as :meth:`vhat.NetworkRegressor.report` and :meth:`vhat.FittedModel.report`, or ``vhat report DIR``.

- :mod:`vhat.report.contents`: everything that the page shows, as plain data;
- :mod:`vhat.report.points`, :mod:`vhat.report.slices`: the points on the page and their intervals;
- :mod:`vhat.report.evaluation_rows`: the rows that test the fit, held out or left out;
- :mod:`vhat.report.quality`: accuracy, coverage by part and importance of columns on these rows;
- :mod:`vhat.report.findings`: the verdict at the head of the page;
- :mod:`vhat.report.page`: the data as one self-contained file;
- ``page/``: template, style and figures.
"""

from vhat.report.contents import collect
from vhat.report.options import Options, Subject
from vhat.report.page import refuse_existing, render, write

__all__ = ["Options", "Subject", "collect", "refuse_existing", "render", "write"]
