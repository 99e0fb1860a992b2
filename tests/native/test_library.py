"""The compiled kernel's library: other processors, several processes, and machines that fail."""

import ctypes
import platform
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from interlock.core.model import AttentionSpec
from interlock.core.testing.attention_oracle import Work
from interlock.core.testing.attention_scene import Scene
from interlock.plugins.attention.gqa import NativeGqaAttention
from interlock.plugins.attention.mla import NativeMlaAttention
from interlock.plugins.attention.native.rows import SOURCE
from interlock.plugins.native import library

QUICK = ("-std=c++17", "-O0", "-fopenmp", "-fPIC", "-Wno-psabi")
HEADS = AttentionSpec("heads", 6, 2, 16, 16, 0.25)


@pytest.fixture
def home(monkeypatch, tmp_path):
    """A home folder in which nothing was compiled, and a process that has not tried to."""
    monkeypatch.setenv("HOME", str(tmp_path))
    library.tried.cache_clear()
    yield tmp_path
    library.tried.cache_clear()


def check_rows(backend, spec, dtype, page_size):
    scene = Scene(backend, (spec,), (30, 7, 142), page_size=page_size, dtype=dtype)
    scene.check_step(Work(0, 27), Work(1, 3), Work(2, 140))
    scene.check_step(Work(2, 1), Work(0, 1), Work(1, 1))
    scene.check_step(Work(1, 2), Work(0, 2))


@pytest.mark.parametrize(("size", "value_size"), [(5, 3), (24, 40), (80, 80), (16, 1)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_heads_of_any_size_equal_the_formula_on_pages_of_any_size(size, value_size, dtype):
    spec = replace(HEADS, head_dim=size, v_head_dim=value_size, window=19)
    check_rows(NativeGqaAttention(), spec, dtype, 3)
    latent = AttentionSpec("latent", 3, 1, size + 2, value_size, 0.3, None, size, 2, size)
    check_rows(NativeMlaAttention("absorbed"), latent, dtype, 3)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="its flags are of x86-64")
def test_the_kernel_is_right_and_compiles_without_a_warning_where_vectors_are_short(
    home, monkeypatch
):
    """Every processor of the architecture has these instructions: vectors of 16 bytes."""
    strict = ("-march=x86-64", "-O1", "-Wall", "-Wextra", "-Werror")  # the last of a kind counts
    monkeypatch.setattr(library, "FLAGS", (*library.FLAGS, *strict))
    assert not isinstance(library.tried(SOURCE), str), library.tried(SOURCE)
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        check_rows(NativeGqaAttention(), replace(HEADS, softcap=2.0, sinks=True), dtype, 16)
    assert len(list((home / ".cache" / "interlock").glob("short_rows-*"))) == 1


@pytest.mark.skipif(platform.machine() != "x86_64", reason="its flags are of x86-64")
def test_every_source_compiles_without_a_warning_where_vectors_are_short(tmp_path, monkeypatch):
    strict = ("-march=x86-64", "-O1", "-Wall", "-Wextra", "-Werror")
    monkeypatch.setattr(library, "FLAGS", (*library.FLAGS, *strict))
    compiler = next(c for name in library.COMPILERS if (c := shutil.which(name)))
    plugins = SOURCE.parents[2]
    for source in sorted(plugins.glob("*/native/*.cpp")):
        library._compiled(compiler, source, tmp_path)
    assert len(list(tmp_path.iterdir())) >= 3


def test_a_compiler_that_fails_is_tried_once_and_quoted(home, monkeypatch):
    compiler, calls = home / "c++", home / "calls"
    compiler.write_text(f"#!/bin/sh\necho x >> {calls}\necho no vectors here >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(home))
    monkeypatch.setattr(library, "COMPILERS", ("c++",))
    for _ in range(3):
        with pytest.raises(library.NativeError, match="gave no library: no vectors here"):
            library.native_library(SOURCE)
    assert calls.read_text() == "x\n"


def test_compiling_at_the_same_time_leaves_one_library(tmp_path, monkeypatch):
    monkeypatch.setattr(library, "FLAGS", QUICK)
    compiler = library.shutil.which("c++") or library.shutil.which("g++")
    with ThreadPoolExecutor(3) as pool:
        made = set(pool.map(lambda _: library._compiled(compiler, SOURCE, tmp_path), range(3)))
    assert made == set(tmp_path.iterdir())
    assert len(made) == 1


@pytest.mark.parametrize("size", [0, 4096, 20_000])
def test_a_library_that_was_cut_is_compiled_again(size, tmp_path, monkeypatch):
    """Loading one that lacks its end would end the process by a signal."""
    monkeypatch.setattr(library, "FLAGS", QUICK)
    source = tmp_path / "five.cpp"
    source.write_text(
        '#include <cmath>\nextern "C" { int five() { return 5; } char more[30000] = "x"; }'
    )
    folder = tmp_path / "kept"
    folder.mkdir()
    made = library._compiled(shutil.which("c++") or "g++", source, folder)
    whole = made.read_bytes()
    assert len(whole) > size
    made.write_bytes(whole[:size])
    again = library._compiled(shutil.which("c++") or "g++", source, folder)
    assert ctypes.CDLL(str(again)).five() == 5
    assert list(folder.iterdir()) == [again]
    assert again.read_bytes() == whole


def test_a_folder_that_others_can_write_is_not_used(home, monkeypatch, tmp_path_factory):
    monkeypatch.setattr(library, "FLAGS", QUICK)
    folder = home / ".cache" / "interlock"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    scratch = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    assert not isinstance(library.tried(SOURCE), str), library.tried(SOURCE)
    assert list(folder.iterdir()) == list(scratch.iterdir()) == []


def test_the_folder_is_made_for_this_user_alone(home):
    folder = library._folder()
    assert folder == home / ".cache" / "interlock"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_without_a_home_folder_nothing_is_kept(monkeypatch):
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    assert library._folder() is None
