"""A directory holds the old document or the new one, whole, or says in words why it holds neither."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import string
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import vhat
from tests.store import saver as store_saver
from vhat.store import directory, read, reading, write
from vhat.store.document import digest, join, split

OLD = {"name": "old", "w": np.arange(6.0).reshape(2, 3), "n": 3}
NEW = {"name": "new", "w": np.ones((4, 2)), "n": None}


def same(a, b):
    """Equal in type, structure and every bit, the order of axes in memory included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        bits = a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        return bits and (
            a.size < 2
            or [s for s, k in zip(a.strides, a.shape, strict=True) if k > 1]
            == [s for s, k in zip(b.strides, b.shape, strict=True) if k > 1]
        )
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


# -- documents -------------------------------------------------------------------------------------
ARRAYS = {
    "number": np.array(3.5),
    "empty": np.zeros((0, 3)),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "axes turned": np.arange(24.0).reshape(2, 3, 4).transpose(1, 2, 0),
    "every second": np.ascontiguousarray(np.arange(10.0)[::2]),
    "half": np.array([1.5, np.nan, -0.0], np.float16),
    "truth": np.array([True, False]),
    "big endian": np.arange(3, dtype=">f8"),
    "big endian codes": np.arange(3, dtype=">i4"),
    "complex": np.array([1 + 2j, np.inf]),
    "dates": np.array(["2020-01-01", "NaT"], "datetime64[D]"),
    "text": np.array(["a", "longer", "ünï"]),
    "unsigned": np.array([2**64 - 1], np.uint64),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_every_kind_come_back_to_the_last_bit(tmp_path, name):
    write(tmp_path / "m", "test", {"a": ARRAYS[name]})
    assert same(read(tmp_path / "m", "test")["a"], ARRAYS[name])


def test_an_array_with_gaps_comes_back_with_its_values():
    plain, arrays = split({"a": np.arange(10.0)[::2]})
    assert np.array_equal(join(plain, arrays)["a"], [0, 2, 4, 6, 8])


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
arrays = hnp.arrays(st.sampled_from(["f8", "f4", "i8", "u1", "?"]), hnp.array_shapes(min_dims=0, min_side=0))
keys = st.text(max_size=3) | st.sampled_from(["$array", "a/b", "a"]) | st.integers()
documents = st.recursive(
    scalars | arrays,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(keys, inner, max_size=3),
)


@settings(max_examples=60, deadline=None)
@given(documents)
def test_any_document_comes_back_through_json(document):
    plain, parts = split(document)
    assert same(join(json.loads(json.dumps(plain, allow_nan=False)), parts), document)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), "scaler/inner is a builtins.object"),
        (np.array([object()]), "scaler/inner is an array of dtype object"),
        (np.zeros(2, [("a", "f8")]), "dtype"),
        (lambda: 0, "without code"),
        (1j, "complex"),
    ],
)
def test_what_a_file_without_code_cannot_hold_is_named(tmp_path, value, said):
    with pytest.raises(vhat.StoreError, match=said):
        write(tmp_path / "m", "test", {"scaler": {"inner": value}})
    assert not (tmp_path / "m").exists()


def test_the_digest_sees_values_types_shapes_and_places():
    one = {"a": np.zeros(4), "b": 1}
    others = [
        {"a": np.array([0, 0, 0, 5e-324]), "b": 1},
        {"a": np.zeros(4, np.float32), "b": 1},
        {"a": np.zeros((2, 2)), "b": 1},
        {"c": np.zeros(4), "b": 1},
        {"a": np.zeros(4), "b": 2},
    ]
    assert len({digest(each) for each in [one, *others]}) == 6
    assert digest({"b": 1, "a": np.zeros(4)}) == digest(one)


# -- replacing -------------------------------------------------------------------------------------
def test_a_second_save_replaces_the_first_and_leaves_other_files_alone(tmp_path):
    write(tmp_path, "test", OLD)
    (tmp_path / "README.txt").write_text("mine")
    write(tmp_path, "test", NEW)
    assert same(read(tmp_path, "test"), NEW)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["README.txt", "v0002", "vhat.json"]
    assert sorted(found.name for found in (tmp_path / "v0002").iterdir()) == ["arrays.safetensors", "manifest.json"]


# -- what the user keeps beside it -----------------------------------------------------------------
def contents(folder):
    """Every file and folder, by name, with its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_folders_of_the_user_that_are_named_like_versions_are_never_removed(tmp_path):
    write(tmp_path, "test", OLD)
    (tmp_path / "v2023" / "chapters").mkdir(parents=True)
    (tmp_path / "v2023" / "thesis.txt").write_text("years of work")
    (tmp_path / "v2024").mkdir()
    (tmp_path / "v2025").write_text("a file")
    (tmp_path / "v2026").mkdir()
    (tmp_path / "v2026" / "manifest.json").write_text('{"kind": "cargo", "directory": "hold"}')
    (tmp_path / "v2026" / "arrays.safetensors").write_text("not ours")
    (tmp_path / "v2027").mkdir()
    (tmp_path / "v2027" / "manifest.json").write_text("[1, 2]")
    shutil.copytree(tmp_path / "v0001", tmp_path / "v2028")  # a backup
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    shutil.copytree(tmp_path / "v0001", elsewhere / "v2029")
    (tmp_path / "v2029").symlink_to(elsewhere / "v2029")
    mine = {name: content for name, content in contents(tmp_path).items() if name.startswith("v2")}
    for document in (NEW, OLD, NEW):
        write(tmp_path, "test", document)
        assert same(read(tmp_path, "test"), document)
        assert mine.items() <= contents(tmp_path).items()
    assert contents(elsewhere).keys() == {"v2029", "v2029/manifest.json", "v2029/arrays.safetensors"}
    assert sorted({name.partition("/")[0] for name in contents(tmp_path)} - set(mine)) == [
        "v2032",
        "vhat.json",
    ]


def test_what_the_user_puts_into_the_directory_of_a_version_stays(tmp_path):
    write(tmp_path, "test", OLD)
    (tmp_path / "v0001" / "notes.txt").write_text("mine")
    (tmp_path / "v0001" / "figures").mkdir()
    write(tmp_path, "test", NEW)
    assert set(contents(tmp_path / "v0001")) == {"notes.txt", "figures"}
    assert same(read(tmp_path, "test"), NEW)


def test_a_directory_that_the_user_makes_while_a_save_begins_is_not_taken_for_a_failed_version(tmp_path, monkeypatch):
    write(tmp_path, "test", OLD)
    mkdir, made = Path.mkdir, []

    def raced(path, *args, **kwargs):
        if path.name == "v0002" and not made:
            made.append(path)
            mkdir(path)
            (path / "thesis.txt").write_text("years of work")
        return mkdir(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", raced)
    write(tmp_path, "test", NEW)
    assert same(read(tmp_path, "test"), NEW)
    assert (tmp_path / "v0002" / "thesis.txt").read_text() == "years of work"


def without_its_name(folder):
    """Make the version in a directory one of the first layout, whose manifest does not say where it was written."""
    pointer = json.loads((folder / "vhat.json").read_text())
    path = folder / pointer["current"] / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["directory"]
    path.write_text(json.dumps(manifest, indent=1))
    pointer["manifest_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "vhat.json").write_text(json.dumps(pointer))


def test_a_version_of_the_first_layout_is_replaced_when_the_pointer_names_it_and_else_left_alone(tmp_path):
    write(tmp_path, "test", OLD)
    without_its_name(tmp_path)
    assert same(read(tmp_path, "test"), OLD)
    shutil.copytree(tmp_path / "v0001", tmp_path / "v0000")
    write(tmp_path, "test", NEW)
    assert same(read(tmp_path, "test"), NEW)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["v0000", "v0002", "vhat.json"]


@pytest.mark.parametrize("planted", ["vhat.json.new", "v0002", "v0002/vhat.json"])
def test_a_symbolic_link_under_a_name_that_saving_uses_is_not_followed(tmp_path, planted):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("precious")
    folder = tmp_path / "model"
    write(folder, "test", OLD)
    link = folder / planted
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(victim / "file" if "json" in planted else victim)
    write(folder, "test", NEW)
    assert same(read(folder, "test"), NEW)
    assert contents(victim) == {"file": b"precious"}
    assert link.is_symlink()
    assert not (folder / "vhat.json").is_symlink()


def test_what_is_on_disk_is_json_and_safetensors_that_others_can_read(tmp_path):
    from safetensors.numpy import load_file

    write(tmp_path, "test", {"scaler": {"mean": np.arange(2.0)}, "columns": ["a", "b"]})
    manifest = json.loads((tmp_path / "v0001" / "manifest.json").read_text())
    assert manifest["document"]["columns"] == ["a", "b"]
    assert manifest["versions"]["numpy"] == np.__version__
    assert manifest["versions"]["vhat"] == vhat.__version__
    assert np.array_equal(load_file(tmp_path / "v0001" / "arrays.safetensors")["scaler/mean"], [0, 1])


def test_saved_files_have_the_permissions_of_any_new_file(tmp_path):
    write(tmp_path / "m", "test", OLD)
    (tmp_path / "other").write_text("")
    modes = {path.stat().st_mode for path in [tmp_path / "other", *(tmp_path / "m").rglob("*.*")]}
    assert len(modes) == 1


@pytest.mark.parametrize("name", ["data.csv", "v0001", ".git"])
def test_a_directory_of_something_else_is_refused_and_not_touched(tmp_path, name):
    (tmp_path / name).mkdir() if name != "data.csv" else (tmp_path / name).write_text("1,2")
    if name == "v0001":
        (tmp_path / name / "thesis.tex").write_text("years of work")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(vhat.StoreError, match=rf"not empty and was not saved by vhat \(it holds {name}\)"):
        write(tmp_path, "test", NEW)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_json_file_of_the_same_name_is_not_taken_for_ours(tmp_path):
    (tmp_path / "vhat.json").write_text('{"format": "something else"}')
    for call in (lambda: write(tmp_path, "test", NEW), lambda: read(tmp_path, "test")):
        with pytest.raises(vhat.StoreError, match="was not written by vhat"):
            call()


def test_a_file_where_a_directory_is_expected_is_refused(tmp_path):
    path = tmp_path / "model.bin"
    path.write_text("precious")
    with pytest.raises(vhat.StoreError, match=r"model\.bin is a file"):
        write(path, "test", NEW)
    with pytest.raises(vhat.StoreError, match=r"model\.bin is a file"):
        read(path, "test")
    with pytest.raises(vhat.StoreError, match="Not a directory"):
        write(path / "inside", "test", NEW)
    assert path.read_text() == "precious"


def test_nothing_saved_is_said(tmp_path):
    with pytest.raises(vhat.StoreError, match="there is no such directory"):
        read(tmp_path / "nothing", "test")
    with pytest.raises(vhat.StoreError, match=r"it has no vhat\.json"):
        read(tmp_path, "test")


def test_another_kind_is_refused(tmp_path):
    write(tmp_path, "NetworkRegressor", OLD)
    with pytest.raises(vhat.StoreError, match="holds a NetworkRegressor, not a fitted model"):
        vhat.load(tmp_path)


# -- damage ----------------------------------------------------------------------------------------
def saved_files(folder):
    write(folder, "test", OLD)
    return [folder / "vhat.json", folder / "v0001" / "manifest.json", folder / "v0001" / "arrays.safetensors"]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_any_changed_byte_is_refused_in_words(tmp_path, which):
    path = saved_files(tmp_path)[which]
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x04]) + content[at + 1 :])
        with pytest.raises(vhat.StoreError):
            read(tmp_path, "test")
    path.write_bytes(content)
    assert same(read(tmp_path, "test"), OLD)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_any_truncation_is_refused_in_words(tmp_path, which):
    path = saved_files(tmp_path)[which]
    content = path.read_bytes()
    for size in range(0, len(content), 3):
        path.write_bytes(content[:size])
        with pytest.raises(vhat.StoreError):
            read(tmp_path, "test")


def test_a_truncated_array_file_says_how_much_is_missing(tmp_path):
    path = saved_files(tmp_path)[2]
    whole = path.stat().st_size
    os.truncate(path, 20)
    with pytest.raises(vhat.StoreError, match=rf"arrays.safetensors is truncated: 20 bytes of {whole}"):
        read(tmp_path, "test")


def test_a_missing_file_is_named(tmp_path):
    saved_files(tmp_path)[2].unlink()
    with pytest.raises(vhat.StoreError, match=r"arrays\.safetensors.*missing"):
        read(tmp_path, "test")


def test_a_newer_format_is_refused_for_reading_and_for_writing(tmp_path):
    pointer = saved_files(tmp_path)[0]
    newer = json.loads(pointer.read_text()) | {"format_version": reading.FORMAT + 1}
    pointer.write_text(json.dumps(newer))
    for call in (lambda: read(tmp_path, "test"), lambda: write(tmp_path, "test", NEW)):
        with pytest.raises(vhat.StoreError, match=r"was saved in format 2, and vhat .* knows format 1. Update vhat"):
            call()


def test_a_pointer_that_leads_elsewhere_is_refused(tmp_path):
    pointer = saved_files(tmp_path / "m")[0]
    saved_files(tmp_path / "v0001")
    for target in ("../v0001", "/etc", "v0001/..", "", None):
        pointer.write_text(json.dumps(json.loads(pointer.read_text()) | {"current": target}))
        with pytest.raises(vhat.StoreError, match="does not name a version"):
            read(tmp_path / "m", "test")


# -- a save that fails -----------------------------------------------------------------------------
def failing_at(patch, step, error):
    """Let one of the calls fail that make, open, sync or rename something; return how many of them there were."""
    calls = []

    def wrapped(function):
        def call(*args, **kwargs):
            if function is open_file and args[1:] != ("xb",):
                return function(*args, **kwargs)
            if "exist_ok" in kwargs:  # of the library that locks, for the directory that is there
                return function(*args, **kwargs)
            calls.append(function)
            if len(calls) == step + 1:
                raise error
            return function(*args, **kwargs)

        return call

    open_file = Path.open
    for place, name in ((os, "fsync"), (Path, "replace"), (Path, "mkdir"), (Path, "open")):
        patch.setattr(place, name, wrapped(getattr(place, name)))
    return calls


def outcome(call):
    try:
        call()
    except BaseException as error:
        return error
    return None


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", range(11))
def test_a_save_that_fails_at_any_step_leaves_the_old_or_the_new(tmp_path, monkeypatch, step, error):
    write(tmp_path, "test", OLD)
    with monkeypatch.context() as patch:
        calls = failing_at(patch, step, error)
        raised = outcome(lambda: write(tmp_path, "test", NEW))
    if step == 10:
        assert raised is None, "ten steps were made to fail, and there are no more"
        assert len(calls) == 10
    elif isinstance(error, OSError):
        assert isinstance(raised, vhat.StoreError)
        assert "The disk is full" in str(raised)
    else:
        assert raised is error
    found = read(tmp_path, "test")
    assert same(found, OLD if step < 9 else NEW), "only the last step comes after the renaming"
    write(tmp_path, "test", NEW)
    assert same(read(tmp_path, "test"), NEW)
    assert len([each for each in tmp_path.iterdir() if each.is_dir()]) == 1


def run(code, *arguments):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_disk_that_fills_up_is_said_and_the_old_model_stays(tmp_path):
    """A real short write: the operating system refuses files above 100 kB."""
    write(tmp_path, "test", OLD)
    code = (
        "import resource, sys, numpy as np\n"
        "from vhat.store import write\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "write(sys.argv[1], 'test', {'w': np.ones(10**6)})\n"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    ended = run(code, tmp_path)
    assert ended.returncode == 1
    assert "vhat.errors.StoreError: saving to" in ended.stderr
    assert "File too large" in ended.stderr
    assert same(read(tmp_path, "test"), OLD)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["v0001", "vhat.json"]


def test_no_permission_is_said(tmp_path):
    tmp_path.chmod(0o555)
    code = (
        "import os, sys\n"
        "from vhat.store import write\n"
        "import safetensors.numpy\n"
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "write(sys.argv[1], 'test', {'n': 1})\n"
    )
    for parent in tmp_path.parents:  # who has no rights must still be able to come here
        if parent.stat().st_uid == os.geteuid() and str(parent) not in ("/", "/tmp"):
            parent.chmod(parent.stat().st_mode | 0o011)
    ended = run(code, tmp_path)
    tmp_path.chmod(0o755)
    assert ended.returncode == 1
    assert "Permission denied" in ended.stderr
    assert "give a directory of your own" in ended.stderr
    assert not list(tmp_path.iterdir())


# -- two processes, and a kill -----------------------------------------------------------------------
def test_two_processes_do_not_save_to_one_directory_at_once(tmp_path):
    write(tmp_path, "test", OLD)
    with directory._locked(tmp_path), pytest.raises(vhat.StoreError, match="another process is saving"):
        write(tmp_path, "test", NEW)
    write(tmp_path, "test", NEW)
    assert same(read(tmp_path, "test"), NEW)


HOLD = """
import pathlib, sys, time
from vhat.store import directory
with directory._locked(pathlib.Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(600)
"""


def test_a_killed_process_holds_no_lock_although_its_lock_file_stays(tmp_path):
    write(tmp_path, "test", OLD)
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as saver:
        try:
            assert saver.stdout.readline().strip() == "locked"
            with pytest.raises(vhat.StoreError, match="another process is saving"):
                write(tmp_path, "test", NEW)
        finally:
            saver.kill()
    assert (tmp_path / directory._LOCK).exists()
    write(tmp_path, "test", NEW)
    assert same(read(tmp_path, "test"), NEW)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["v0002", "vhat.json"]


def test_a_lock_file_that_a_killed_first_save_left_does_not_make_the_directory_foreign(tmp_path):
    (tmp_path / directory._LOCK).touch()
    write(tmp_path, "test", NEW)
    assert same(read(tmp_path, "test"), NEW)


def test_the_lock_is_held_by_one_at_a_time_although_its_file_is_removed(tmp_path):
    """Removing the file of a lock is the classic way to give it to two: one has the old file, one the new."""
    inside, overlaps, taken = [], [], []

    def take_in_turn(number):
        for _ in range(400):
            try:
                with directory._locked(tmp_path):
                    inside.append(number)
                    time.sleep(1e-5)
                    overlaps.extend(inside[1:])
                    inside.remove(number)
                    taken.append(number)
            except vhat.StoreError as error:
                assert "another process is saving" in str(error)  # noqa: PT017  (each refusal is in words)

    threads = [threading.Thread(target=take_in_turn, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not overlaps
    assert len(taken) > 100
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", ["ENOSYS", "ENOLCK", "EOPNOTSUPP"])
def test_a_file_system_without_locks_is_saved_to_all_the_same(tmp_path, monkeypatch, number):
    code = getattr(errno, number)

    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", refuse)
    write(tmp_path, "test", NEW)
    assert same(read(tmp_path, "test"), NEW)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["v0001", "vhat.json"]


def test_a_reader_meets_whole_documents_while_another_saves(tmp_path):
    write(tmp_path, "test", OLD)
    stop = threading.Event()

    def save_in_turn():
        while not stop.is_set():
            write(tmp_path, "test", NEW)
            write(tmp_path, "test", OLD)

    writer = threading.Thread(target=save_in_turn)
    writer.start()
    try:
        found = [read(tmp_path, "test") for _ in range(300)]
        late = time.monotonic() + 60  # a busy machine may have let the writer wait
        while {each["name"] for each in found} != {"old", "new"} and time.monotonic() < late:
            found.append(read(tmp_path, "test"))
    finally:
        stop.set()
        writer.join()
    assert all(same(each, OLD) or same(each, NEW) for each in found)
    assert {each["name"] for each in found} == {"old", "new"}


@pytest.mark.parametrize("killed", ["while the arrays were written", "before the pointer was renamed"])
def test_what_a_first_save_left_when_it_was_killed_is_no_model_and_is_cleared(tmp_path, killed):
    write(tmp_path, "test", OLD)
    (tmp_path / "vhat.json").rename(tmp_path / "v0001" / "vhat.json")
    if killed == "while the arrays were written":
        (tmp_path / "v0001" / "vhat.json").unlink()
        os.truncate(tmp_path / "v0001" / "arrays.safetensors", 20)
    with pytest.raises(vhat.StoreError, match="holds no model"):
        read(tmp_path, "test")
    write(tmp_path, "test", NEW)
    assert same(read(tmp_path, "test"), NEW)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["v0002", "vhat.json"]


def test_what_was_left_without_saying_whose_it_is_is_left_alone(tmp_path):
    """Killed between making the directory and writing its manifest; and leftovers of the first layout."""
    (tmp_path / "v0001").mkdir()
    (tmp_path / "v0002").mkdir()
    (tmp_path / "v0002" / "manifest.json").write_bytes(b'{"kind": "te')
    (tmp_path / "v0003").mkdir()
    (tmp_path / "v0003" / "arrays.safetensors").write_bytes(b"half")
    (tmp_path / "vhat.json.new").write_bytes(b"{")
    before = contents(tmp_path)
    write(tmp_path, "test", OLD)
    write(tmp_path, "test", NEW)
    assert same(read(tmp_path, "test"), NEW)
    assert before.items() <= contents(tmp_path).items()
    assert sorted(set(contents(tmp_path)) - set(before)) == [
        "v0005",
        "v0005/arrays.safetensors",
        "v0005/manifest.json",
        "vhat.json",
    ]


def test_a_save_killed_at_any_of_fifty_moments_leaves_one_of_two_models_whole(tmp_path):
    folder = tmp_path / "model"
    slopes = {2.0: store_saver.model(2.0), -5.0: store_saver.model(-5.0)}
    bands = {slope: fitted.interval([0.5, 2.0]).upper.tobytes() for slope, fitted in slopes.items()}
    slopes[2.0].save(folder)
    moments, patience = random.Random(0), 0.01
    command = [sys.executable, "-m", "tests.store.saver", str(folder)]
    found, interrupted, seen = [], 0, set()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    ) as saver:
        # fifty kills, and more of them where a slow machine has not yet shown both models and some half saved
        while len(found) < 50 or not ((set(found) == {2.0, -5.0} and interrupted >= 10) or len(found) == 500):
            saver.stdin.write("\n")
            saver.stdin.flush()
            child = int(saver.stdout.readline())
            time.sleep(moments.uniform(0, patience))
            os.kill(child, signal.SIGKILL)
            assert saver.stdout.readline().strip() == "ended"
            current = json.loads((folder / "vhat.json").read_text())["current"]
            left = {each.name for each in folder.iterdir()} - {"vhat.json", current, directory._LOCK}
            interrupted += bool(left - seen)  # what a kill before the manifest leaves is never removed
            seen |= left
            band = vhat.load(folder, model=store_saver.line).interval([0.5, 2.0]).upper.tobytes()
            found.append({value: slope for slope, value in bands.items()}[band])
            # a save takes as long as it takes here: wait longer where the first was not finished, else less
            patience *= 1.2 if found[-1] == found[-2:][0] else 0.8
        saver.stdin.close()
    assert set(found) == {2.0, -5.0}
    assert interrupted >= 10, "the kills should have come in the middle of saving"


def test_names_on_disk_are_told_apart(tmp_path):
    """Keys that would make the same path, and keys of any text."""
    tricky = {"a": {"b": np.zeros(1)}, "a/b": np.ones(1), string.punctuation: np.full(1, 2.0)}
    write(tmp_path, "test", tricky)
    assert same(read(tmp_path, "test"), tricky)
