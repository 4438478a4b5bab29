"""The rows of the table, one file a family. A new family is a new file here: it is found by itself."""

from importlib import import_module
from pkgutil import iter_modules

FIRST = ("pointwise", "wide", "products", "memory", "growth", "refits", "minimum", "laplace", "solvers")
"""The order of the table; families that are not named follow."""

found = [module.name for module in iter_modules(__path__)]
for name in [*FIRST, *(name for name in found if name not in FIRST)]:
    import_module(f"{__name__}.{name}")
