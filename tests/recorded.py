"""The recorded runs: trained networks, their streams, and what the published implementations made of them."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import torch

import nets

TRACES = Path(__file__).parent / "assets" / "traces"
NETWORKS = ("conv-11", "token-12")


@functools.cache
def recorded(name: str) -> dict[str, np.ndarray]:
    with np.load(TRACES / f"{name}.npz") as file:
        return dict(file)


def network(name: str) -> torch.nn.Module:
    """The trained network in float64."""
    net = nets.conv_net() if name.startswith("conv") else nets.token_net()
    net.load_state_dict(
        {key.removeprefix("net/"): torch.tensor(v) for key, v in recorded(name).items() if key.startswith("net/")}
    )
    return net.double()


def stream(name: str) -> torch.Tensor:
    """Images [steps, 16, 3, 12, 12] in float64."""
    return torch.tensor(recorded(name)["images"]).double()
