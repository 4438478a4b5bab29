"""Files that no accident makes: forged with right checksums, or of another kind or size than those of a model."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

import numpy as np
import pytest

import vhat
from tests.hostile import files
from vhat.schema import build, check
from vhat.store import directory, read, write

OLD = {"name": "old", "w": np.arange(6.0).reshape(2, 3), "n": 3}
FILES = {"pointer": "vhat.json", "manifest": "v0001/manifest.json", "arrays": "v0001/arrays.safetensors"}


@pytest.fixture
def saved(tmp_path):
    write(tmp_path, "test", OLD)
    return tmp_path


def sealed(folder, text):
    """Write a manifest, and give the pointer its checksum."""
    (folder / FILES["manifest"]).write_bytes(text)
    pointer = json.loads((folder / "vhat.json").read_text())
    pointer["manifest_sha256"] = hashlib.sha256(text).hexdigest()
    (folder / "vhat.json").write_text(json.dumps(pointer))


def refusal(folder):
    """What reading says, within a second."""
    began = time.monotonic()
    with pytest.raises(vhat.StoreError) as caught:
        read(folder, "test")
    assert time.monotonic() - began < 1
    return caught.value


def test_brackets_nested_200_000_deep_are_refused(saved):
    (saved / "vhat.json").write_bytes(b"[" * 200_000)
    assert "bytes, and vhat writes no such file" in str(refusal(saved))
    (saved / "vhat.json").write_bytes(b"[" * 60_000)
    assert "nested too deeply" in str(refusal(saved))
    write_again = pytest.raises(vhat.StoreError, match="nested too deeply")
    with write_again:
        write(saved, "test", OLD)


def test_a_manifest_of_nested_brackets_is_refused(saved):
    sealed(saved, b'{"kind": "test", "document": ' + b"[" * 200_000)
    found = refusal(saved)
    assert "nested too deeply" in str(found)
    assert isinstance(found.__cause__, RecursionError)


@pytest.mark.parametrize("file", ["pointer", "manifest", "arrays"])
def test_a_sparse_file_of_8_gigabytes_is_refused_before_it_is_read(saved, file):
    os.truncate(saved / FILES[file], 8 << 30)
    assert "bytes" in str(refusal(saved))


@pytest.mark.parametrize("file", ["pointer", "manifest", "arrays"])
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(saved, file):
    (saved / FILES[file]).unlink()
    os.mkfifo(saved / FILES[file])
    assert "is not a regular file" in str(refusal(saved))


def test_a_save_does_not_wait_for_a_pipe_among_old_versions(saved):
    (saved / "v0007").mkdir()
    os.mkfifo(saved / "v0007" / "manifest.json")
    write(saved, "test", OLD)
    assert (saved / "v0007" / "manifest.json").exists()


def test_a_folder_of_the_user_with_a_number_of_any_length_does_not_name_the_next_version(saved):
    for name in ("v" + "9" * 12, "v" + "9" * 40):
        (saved / name).mkdir()
    write(saved, "test", OLD)
    assert json.loads((saved / "vhat.json").read_text())["current"] == "v0002"


def test_texts_above_the_limit_are_not_saved(saved, monkeypatch):
    monkeypatch.setattr(directory, "MOST_MANIFEST", 1000)
    with pytest.raises(vhat.StoreError, match=r"take [\d,]+ bytes, and a model that is saved may have 1,000"):
        write(saved, "test", {"text": "x" * 1000})
    assert read(saved, "test")["name"] == "old"


@pytest.mark.parametrize(
    "manifest",
    [
        [],
        {},
        {"kind": 3, "arrays": {"bytes": 1, "sha256": ""}, "document": {}},
        {"kind": "test", "arrays": None, "document": {}},
        {"kind": "test", "arrays": {"bytes": "1", "sha256": ""}, "document": {}},
        {"kind": "test", "arrays": {"bytes": True, "sha256": ""}, "document": {}},
        {"kind": "test", "arrays": {"bytes": 1, "sha256": ""}, "document": []},
    ],
)
def test_a_forged_manifest_without_its_entries_is_refused(saved, manifest):
    sealed(saved, json.dumps(manifest).encode())
    assert "lacks its kind, its document or the size of its arrays" in str(refusal(saved))


@pytest.mark.parametrize(
    ("note", "words"),
    [
        ({"$array": "nothing"}, "does not hold"),
        ({"$array": ["w"]}, "does not hold"),
        ({"$array": "w", "dtype": "O", "shape": [6]}, "dtype object"),
        ({"$array": "w", "dtype": "V8", "shape": [6]}, "which a document cannot hold"),
        ({"$array": "w", "dtype": "f8", "shape": [7]}, "ValueError"),
        ({"$array": "w", "axes": [5, 6]}, "has 2 axes"),
        ({"$float": "many"}, "ValueError"),
        ({"$tuple": 3}, "TypeError"),
        ({"$dict": [[[1], 2]]}, "TypeError"),
    ],
)
def test_forged_notes_in_a_document_are_refused(saved, note, words):
    manifest = json.loads((saved / FILES["manifest"]).read_text())
    manifest["document"]["w"] = note
    sealed(saved, json.dumps(manifest).encode())
    found = refusal(saved)
    assert words in str(found)
    assert ("Error" in words) == (found.__cause__ is not None), "an error of Python's is the cause"


def drop(*path):
    return {"model": "ridge", "act": "document", "path": ["document", *path], "how": "delete"}


def put(value, *path, model="ridge"):
    return {"model": model, "act": "document", "path": ["document", *path], "how": "replace", "value": value}


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (drop("y"), "fitted model is malformed: it has no entry y"),
        (drop("polished", "definiteness", "steps"), "Definiteness is malformed: it has no entry steps"),
        (put("much", "memory"), "its entry memory is 'much' and not a int"),
        (put(None, "probe", "rows"), "entry probe"),
        (put([1], "model"), "entry model"),
        (put("magic", "polished", "status"), "entry status is 'magic'"),
        (put({"$array": "y"}, "noise_shape"), r"noise_shape is malformed: it is shape \(24,\)"),
        ({"model": "ridge", "act": "array", "name": "weight_decay", "how": "huge"}, "weight_decay has 1e.308"),
        ({"model": "weighted", "act": "array", "name": "sample_weight", "how": "nan"}, "sample_weight is malformed"),
    ],
)  # fmt: skip
def test_a_forged_fitted_model_is_refused_by_the_entry_that_is_wrong(case, words):
    found = files.run(case)
    assert found.name == "refused"
    assert re.search(words, found.told), found.told
    assert found.told.startswith("StoreError")


@pytest.mark.parametrize(
    "how", ["length", "offsets", "dtype", "shape", "twice", "text", "deep"]
)  # fmt: skip
@pytest.mark.parametrize("number", [-1, 2**63 - 1])
def test_a_forged_header_of_the_arrays_is_refused(how, number):
    found = files.run({"model": "ridge", "act": "header", "how": how, "number": number})
    assert found.name == "refused" or (how == "dtype" and not found.fails)


# -- the check itself --------------------------------------------------------------------------------
@dataclass
class Part:
    size: float
    name: str = ""
    way: Literal["in", "out"] = "in"
    marks: tuple[int, ...] = ()
    table: np.ndarray | None = None


class Whole(TypedDict):
    parts: list[dict[str, int]]
    pair: tuple[int, str]


def test_fields_of_the_right_types_make_the_record():
    made = build(Part, {"size": 1, "marks": (1, 2), "table": None})
    assert made == Part(1, marks=(1, 2))
    check(Whole, {"parts": [{"a": 1}], "pair": (1, "a"), "more": object()}, "whole")


@pytest.mark.parametrize(
    "saved",
    [
        3, {}, {"size": True}, {"size": 10**400}, {"size": 1.0, "way": "up"}, {"size": 1.0, "way": ["in"]},
        {"size": 1.0, "marks": [1]}, {"size": 1.0, "marks": (1, "2")}, {"size": 1.0, "table": [1]},
        {"size": 1.0, "more": 1}, {"size": 1.0, "table": np.array([object()])},
    ],
)  # fmt: skip
def test_other_fields_are_refused(saved):
    with pytest.raises(vhat.StoreError, match="the saved Part is malformed"):
        build(Part, saved)


@pytest.mark.parametrize(
    "saved",
    [None, {}, {"parts": [{"a": "1"}], "pair": (1, "a")}, {"parts": [], "pair": (1,)}, {"parts": {}, "pair": (1, "a")}],
)  # fmt: skip
def test_other_documents_are_refused(saved):
    with pytest.raises(vhat.StoreError, match="the saved whole is malformed"):
        check(Whole, saved, "whole")


@pytest.mark.parametrize("place", [None, 3, b"model", "a\0b", Path("a\0b")])
def test_what_is_no_name_of_a_directory_is_refused(place):
    for call in (lambda: write(place, "test", OLD), lambda: read(place, "test")):
        with pytest.raises(vhat.StoreError, match=r"not the name of a directory|null character"):
            call()
