"""Columns of any kind as numbers: text that holds numbers, dates, categories, yes and no, missing cells.

- :mod:`vhat.tables.columns.notation`: how numbers are written in a column of text;
- :mod:`vhat.tables.columns.dates`: how dates are;
- :mod:`vhat.tables.columns.kinds`: what is kept of a column of each kind, and its numbers for new rows;
- :mod:`vhat.tables.columns.decide`: which kind a column is, decided over all of its cells;
- :mod:`vhat.tables.columns.encoder`: the columns of a table together.
"""

from vhat.tables.columns.decide import KINDS
from vhat.tables.columns.encoder import Columns, Encoded
from vhat.tables.columns.kinds import MISSING, UNKNOWN, Column
from vhat.tables.columns.wording import Wording

__all__ = ["KINDS", "MISSING", "UNKNOWN", "Column", "Columns", "Encoded", "Wording"]
