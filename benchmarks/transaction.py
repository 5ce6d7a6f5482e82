"""What it costs that a step is whole or not at all: the copies that a way back needs, beside the step itself.

    python benchmarks/transaction.py
    python benchmarks/transaction.py --pairs cotta rmt vida rotta --rounds 5

Each step with and without the copies, by turns in one process; medians. "copies alone" times only what is done before
and after a step for its sake, which noise hides less. "a bare copy" is one of as many bytes into memory that is kept:
less than that it cannot cost. Images are random, and every sample is selected.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

import tidefast
from tidefast import methods, resets
from tidefast.core.session import Session


class Unguarded(tidefast.Adapter):
    """An adapter that copies nothing before a step, and so has no way back."""

    def _begin(self) -> Session:
        draft = self._at_rest(self._session)
        draft.step += 1
        return draft


def made(kind: type[tidefast.Adapter], pair: str, network: str, images: torch.Tensor) -> tidefast.Adapter:
    """An adapter of `method` or `method+policy` that has taken two steps."""
    name, _, policy = pair.partition("+")
    method = methods.base.registry.get(name)
    chosen = method(**method.busiest)
    source = (images, torch.arange(len(images)) % 10) if chosen.needs_source else None
    adapter = kind(
        tidefast.models.load(network), chosen, reset=resets.base.registry.make(policy or "never"), source=source
    )
    for _ in range(2):
        adapter(images)
    return adapter


def seconds(call: Callable[[], object]) -> float:
    """Of the processor, for one call."""
    started = time.process_time()
    call()
    return time.process_time() - started


def row(pair: str, network: str, images: torch.Tensor, rounds: int) -> str:
    """One line of the table."""
    guarded, bare = (made(kind, pair, network, images) for kind in (tidefast.Adapter, Unguarded))
    held = torch.rand(guarded._whole().numbers())
    kept = held.clone()
    times = [
        (
            seconds(lambda: guarded(images)),
            seconds(lambda: bare(images)),
            seconds(lambda: guarded._commit(guarded._begin())),
            seconds(lambda: kept.copy_(held)),
        )
        for _ in range(rounds)
    ]
    whole, without, copies, one = (statistics.median(column) for column in zip(*times, strict=True))
    shares = f"{100 * copies / whole:.2f} % | {100 * one / whole:.2f} %"
    return f"| {pair} | {1e3 * whole:.0f} | {whole / without:.3f} | {shares} | {len(held)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="bundled-resnet")
    parser.add_argument("--pairs", nargs="+", default=["tent", "eta", "roid+asr"], help="method or method+policy")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    images = torch.rand(options.batch, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    print(f"{options.network}, batch {options.batch}, 1 thread, median of {options.rounds} rounds\n")
    print("| step | ms | with / without | copies alone | a bare copy | numbers copied |\n" + "| --- " * 6 + "|")
    for pair in options.pairs:
        print(row(pair, options.network, images, options.rounds), flush=True)


if __name__ == "__main__":
    main()
