"""Save and load fitted models: a directory of safetensors and JSON, replaced atomically.

- :mod:`vhat.store.document`: nested data with arrays, split into JSON and arrays;
- :mod:`vhat.store.directory`: write a document to a directory, completely or not at all;
- :mod:`vhat.store.reading`: read it again, with checks;
- :mod:`vhat.store.fitted`: a fitted model as a document, and back;
- :mod:`vhat.store.match_model`: check that code and data given to ``load`` are those of the saved model;
- one adapter per kind of problem, listed in :mod:`vhat.store.fitted`.
"""

from vhat.store.directory import write
from vhat.store.fitted import KIND, Restored, describe, restore, save
from vhat.store.match_model import Supplied
from vhat.store.reading import kind_of, read, well_formed
from vhat.store.records import restore_factorisation

__all__ = [
    "KIND",
    "Restored",
    "Supplied",
    "describe",
    "kind_of",
    "read",
    "restore",
    "restore_factorisation",
    "save",
    "well_formed",
    "write",
]
