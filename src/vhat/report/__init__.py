"""One HTML file about one fitted model: what was fitted, what was checked, and how far each prediction can be trusted.

Called as :meth:`vhat.NetworkRegressor.report` and :meth:`vhat.FittedModel.report`, or ``vhat report DIR``.

- :mod:`vhat.report.contents`: everything that the page shows, as plain data; every number is the library's own;
- :mod:`vhat.report.page`: from that data to one self-contained file;
- ``page/``: its template, its style and its drawings.
"""

from vhat.report.contents import collect
from vhat.report.options import Options, Subject
from vhat.report.page import refuse_existing, render, write

__all__ = ["Options", "Subject", "collect", "refuse_existing", "render", "write"]
