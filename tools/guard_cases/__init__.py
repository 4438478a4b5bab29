"""The cases of ``tools/guard.py``: what is computed on each of two commits and compared.

They use public names of vhat only, so that they run on any commit. A case is a function of a
:class:`~guard_cases.record.Record` and the kit of a framework; its name is ``framework/function``.
"""

from guard_cases.registry import names, run

__all__ = ["names", "run"]
