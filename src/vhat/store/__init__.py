"""Fitted models on disk: safetensors and JSON in a directory that is whole at every moment.

- :mod:`vhat.store.directory`: any document with arrays in it, written at once or not at all;
- :mod:`vhat.store.reading`: the same document again, checked;
- :mod:`vhat.store.fitted`: a fitted model as such a document, and back;
- :mod:`vhat.store.match_model`: whether the code and data that come with ``load`` are those that were saved.
"""

from vhat.store.directory import write
from vhat.store.fitted import KIND, Restored, describe, restore, save
from vhat.store.match_model import Brought
from vhat.store.reading import kind_of, read, well_formed
from vhat.store.records import restore_factorisation

__all__ = [
    "KIND",
    "Brought",
    "Restored",
    "describe",
    "kind_of",
    "read",
    "restore",
    "restore_factorisation",
    "save",
    "well_formed",
    "write",
]
