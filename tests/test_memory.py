"""A process that keeps its memory: no page faults from step to step, and only where it was asked for."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

import tidefast

FAULTS = """
import resource
def faults_a_step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        bytearray(80 * 2**20)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 8
"""
"""A "step" of one block of 20,480 pages, more than fits into the heap that glibc gives to a thread."""


def in_a_process(code: str, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", FAULTS + code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_process_that_keeps_its_memory_has_no_page_faults_from_step_to_step():
    before, kept, _, after = in_a_process("""
import tidefast
print(faults_a_step(), tidefast.keep_memory(), faults_a_step(), faults_a_step())""")
    assert kept == "True"
    assert float(before) > 10_000
    assert float(after) < 10


def test_other_threads_keep_their_memory_too():
    warm, after = in_a_process("""
import tidefast
from concurrent.futures import ThreadPoolExecutor
tidefast.keep_memory()
with ThreadPoolExecutor(1) as pool:
    print(pool.submit(faults_a_step).result(), pool.submit(faults_a_step).result())""")
    assert float(after) < 10, warm


@pytest.mark.slow
def test_importing_and_adapting_leave_the_allocator_alone():
    (faults,) = in_a_process("""
import tidefast, torch
tidefast.adapt(torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.LayerNorm(2)), "tent")(torch.rand(4, 4))
print(faults_a_step())""")
    assert float(faults) > 10_000


def test_a_command_keeps_its_memory():
    *_, _, after = in_a_process("""
from tidefast.cli import main
main(["paper"])
print(faults_a_step(), faults_a_step())""")
    assert float(after) < 10


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_who_has_set_the_allocator_in_the_environment_has_decided(name, monkeypatch, caplog):
    monkeypatch.setenv(name, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1000000"}.get(name, "1000000"))
    with caplog.at_level(logging.INFO, "tidefast"):
        assert not tidefast.keep_memory()
    assert caplog.messages == [f"memory is not kept between steps: the environment sets the allocator ({name})"]


def no_such_library(name: str | None) -> ctypes.CDLL:
    raise OSError(f"{name}: no such file")


def musl(name: str | None) -> object:
    return SimpleNamespace(malloc=ctypes.pythonapi.PyMem_Malloc)


def preloaded(name: str | None) -> object:
    """glibc's own malloc has another address than the one that everybody gets."""
    malloc = ctypes.pythonapi.PyMem_RawMalloc if name is None else ctypes.pythonapi.PyMem_Malloc
    return SimpleNamespace(malloc=malloc, mallopt=lambda parameter, value: 1)


@pytest.mark.parametrize("open_library", [no_such_library, musl, preloaded])
def test_with_any_other_malloc_it_does_nothing_and_says_so(open_library, monkeypatch, caplog):
    monkeypatch.setattr(ctypes, "CDLL", open_library)
    with caplog.at_level(logging.INFO, "tidefast"):
        assert not tidefast.keep_memory()
    assert caplog.messages == ["memory is not kept between steps: malloc is not glibc's"]
