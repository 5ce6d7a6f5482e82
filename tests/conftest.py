"""Shared fixtures, and which tests are slow."""

from __future__ import annotations

import importlib

import hypothesis
import networks
import pytest
import torch

# The same examples in every run: what lands today does not fail tomorrow by chance.
hypothesis.settings.register_profile("steady", derandomize=True)
hypothesis.settings.load_profile("steady")

SLOW_FIXTURES = {"browser", "site", "without_extras"}
"""Who uses one of these is slow: Chromium, the built documentation, an installation without extras."""


@pytest.hookimpl(tryfirst=True)  # before `-m` leaves any out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SLOW_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)  # before any fixture
def pytest_runtest_setup() -> None:
    """Small networks run best on one thread, and the runner already uses the cores. For each test anew: a service or
    a command in this process chooses another number, and all later tests would take many times as long."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def torchvision():
    return networks.torchvision()


@pytest.fixture(scope="session")
def timm(torchvision):
    return importlib.import_module("timm")
