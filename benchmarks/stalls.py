"""How often the host waits for the device in a step, for every method and some reset policies.

    python benchmarks/stalls.py
    python benchmarks/stalls.py --methods eta roid --policies asr --kinds

No device is needed (benchmarks/pretended_device.py). The most of three steps on random images of a tiny network, with
every sample selected; `--kinds` says what the host waited for.
"""

from __future__ import annotations

import argparse
from collections import Counter

import torch
from pretended_device import DEVICE, pretended_device

import tidefast
from tidefast import methods, resets
from tidefast.testing import small_network


def stalls(method: str, policy: str) -> Counter[str]:
    """Of the step of three that had the most."""
    kind = methods.base.registry.get(method)
    chosen = kind(**{**kind.quick, **kind.busiest})
    generator = torch.Generator().manual_seed(0)
    steps = []
    with pretended_device() as device:
        torch.manual_seed(0)
        with torch.device(DEVICE):
            network = small_network("attention" if kind.transformers_only else "batch")
        source = (torch.rand(32, 3, 32, 32, generator=generator), torch.arange(32) % 10)
        needed = chosen.takes_source or resets.base.registry.make(policy).takes_source
        adapter = tidefast.adapt(network, chosen, reset=policy, source=source if needed else None)
        for _ in range(3):
            images = torch.rand(3 if method == "memo" else 12, 3, 32, 32, generator=generator).to(DEVICE)
            device.stalls.clear()
            adapter(images)
            steps.append(Counter(device.stalls))
    return max(steps, key=Counter.total)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=tidefast.list_methods())
    parser.add_argument("--policies", nargs="+", default=["never", "asr", "guard"])
    parser.add_argument("--kinds", action="store_true", help="say what the host waited for")
    options = parser.parse_args()
    print("| method | " + " | ".join(options.policies) + " |")
    print("| --- |" + " --- |" * len(options.policies))
    for method in options.methods:
        counts = [stalls(method, policy) for policy in options.policies]
        cells = [", ".join(f"{n} {kind}" for kind, n in c.items()) if options.kinds else str(c.total()) for c in counts]
        print(f"| {method} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
