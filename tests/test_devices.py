"""Adapting on a device, in a process of its own: torch learns of the pretended one for the life of a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).with_name("on_a_pretended_device.py")


@pytest.mark.parametrize("part", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_adapting_on_a_device_makes_no_tensor_elsewhere_and_waits_for_it_seldom(part):
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "-m", part, str(CHECKS)]
    done = subprocess.run(command, cwd=CHECKS.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
