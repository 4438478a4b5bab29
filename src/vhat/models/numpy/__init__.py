"""NumPy functions, and SciPy's ``curve_fit`` results, as problems."""

from vhat.models.numpy.build import curve_fit_problem, numpy_problem

__all__ = ["curve_fit_problem", "numpy_problem"]
