"""Sudden failures, and the guard with other numbers inside: what benchmarks/guard.yaml cannot ask.

    python benchmarks/guard_trials.py failures          # AETTA takes long; without it: failures never asr guard
    python benchmarks/guard_trials.py settings
    python benchmarks/guard_trials.py kept            # going back to kept parameters, on the streams it was tuned on
    python benchmarks/guard_trials.py doubt           # who answers best while evidence of harm gathers, on the same
    python benchmarks/guard_trials.py statistics
    python benchmarks/guard_trials.py confidence      # what canaries say of the source as it was trained
    python benchmarks/guard_trials.py alone           # without canaries
    python benchmarks/guard_trials.py cost
    python benchmarks/guard_trials.py life            # draws docs/images/guard-life.png

bundled-resnet, batches of 16 of ccc-mini, as many canaries as the guard takes, which no stream shows; `kept` and
`statistics` have streams and networks of their own.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

import tidefast
from tidefast import StepRecord, datasets, models, streams
from tidefast.resets import Guard
from tidefast.resets.guard.canaries import confidence
from tidefast.resets.guard.look import dress

ROOT = Path(__file__).parents[1]
Batch = tuple[Tensor, Tensor]
POLICIES = ("never", "asr", "aetta", "guard")
METHODS = {"ETA": "eta:similarity_margin=0.4", "ROID": "roid"}
NAMED = {"Tent": "tent", **METHODS, "EATA": "eata:similarity_margin=0.4,fisher_weight=1.0"}
TUNED_ON = [
    ("bundled-resnet", "drift", 3, "Tent", (3, 10, 30)),
    ("bundled-resnet", "drift", 3, "ETA", (10, 100)),
    ("bundled-resnet", "drift", 3, "ROID", (30,)),
    ("bundled-resnet", "drift", 3, "EATA", (10,)),
    ("bundled-resnet", "recurring", 4, "Tent", (1, 10)),
    ("bundled-resnet", "recurring", 4, "ETA", (10,)),
    ("bundled-vit", "drift", 4, "Tent", (1, 10)),
]
"""Network, stream, seed, method, rates: a part of what the guard was tuned on."""
ORDERED = {"order": {"name": "dirichlet", "delta": 0.1}}
"""Labels in order, nearly sorted."""
BEFORE, SETTLE, AFTER = 100, 20, 60
"""Batches before the cause, after its end that do not count, and after those."""


def main(what: str, *policies: str) -> None:
    """Print a table as Markdown."""
    torch.set_num_threads(1)
    tidefast.keep_memory()
    tables = {
        "failures": functools.partial(print_failures, policies or POLICIES),
        "settings": print_settings,
        "kept": print_kept,
        "doubt": print_doubt,
        "statistics": print_statistics,
        "confidence": print_confidence,
        "alone": print_alone,
        "cost": print_cost,
        "life": draw_life,
    }
    tables[what]()


def print_failures(policies: Sequence[str]) -> None:
    """Accuracy from the twentieth batch after the end of a cause on, over that of batch statistics; in brackets how
    many batches after the beginning of the cause the first reset came."""
    print("| cause | method | " + " | ".join(policies) + " | within 2 points |")
    print("| --- | --- |" + " ---: |" * len(policies) + " --- |")
    for (cause, happen), (title, method) in itertools.product(CAUSES.items(), METHODS.items()):
        trials = {policy: [_after(happen, method, policy, seed) for seed in (43, 44)] for policy in policies}
        gains = {policy: float(np.mean([gain for gain, _ in both])) for policy, both in trials.items()}
        shown = [
            f"{gains[policy]:+.1f} ({', '.join('-' if delay is None else str(delay) for _, delay in both)})"
            for policy, both in trials.items()
        ]
        verdict = "**pass**" if gains["guard"] >= -2.0 else "**fail**"
        print(f"| {cause} | {title} | " + " | ".join(shown) + f" | {verdict} |", flush=True)


def _after(
    happen: Callable[[tidefast.Adapter, list[Batch]], None], method: str, policy: str, seed: int
) -> tuple[float, int | None]:
    batches = _batches("medium", seed, BEFORE + SETTLE + AFTER)
    adapter = _adapter(method, policy, 1)
    _accuracy(adapter, batches[:BEFORE])
    resets: list[bool] = []
    adapter.callbacks.append(lambda _, record: resets.append(bool(record.reset_fraction)))
    happen(adapter, batches[:BEFORE])
    _accuracy(adapter, batches[BEFORE : BEFORE + SETTLE])
    judged = batches[BEFORE + SETTLE :]
    gain = _accuracy(adapter, judged) - _accuracy(tidefast.adapt(NETWORK, "batchnorm"), judged)
    return gain, resets.index(True) + 1 if any(resets) else None


def _disturb(adapter: tidefast.Adapter, batches: list[Batch]) -> None:
    arena = adapter.network.arena
    arena.assign(arena.values + torch.randn(len(arena), generator=torch.Generator().manual_seed(0)))


def _rush(adapter: tidefast.Adapter, batches: list[Batch]) -> None:
    for group in adapter.optimizer.param_groups:
        group["lr"] *= 1000
    _accuracy(adapter, batches[-20:])
    for group in adapter.optimizer.param_groups:
        group["lr"] /= 1000


def _stick(adapter: tidefast.Adapter, batches: list[Batch]) -> None:
    images, labels = batches[-1]
    _accuracy(adapter, [(images[:1].expand_as(images).clone(), labels)] * 100)


def _single_class(adapter: tidefast.Adapter, batches: list[Batch]) -> None:
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    own = images[labels == 3]
    for k in range(200):
        adapter(own[torch.arange(16 * k, 16 * k + 16) % len(own)])


CAUSES = {
    "parameters disturbed": _disturb,
    "rate times 1,000 for 20 batches": _rush,
    "stuck sensor: one image for 100 batches": _stick,
    "one class for 200 batches": _single_class,
}


def print_settings() -> None:
    """The mean over four cells when each number of the guard is halved and doubled."""
    cells = [
        (_batches(level, seed, 250), method, rate)
        for level, seed, trials in (
            ("hard", 45, (("tent", 10), ("roid", 30))),
            ("medium", 46, ((METHODS["ETA"], 10), ("roid", 1))),
        )
        for method, rate in trials
    ]
    references = [_accuracy(tidefast.adapt(NETWORK, "batchnorm"), batches) for batches, _, _ in cells]

    def mean(guard: Guard) -> float:
        gains = [
            _accuracy(_adapter(method, guard, rate), batches) - reference
            for (batches, method, rate), reference in zip(cells, references, strict=True)
        ]
        return float(np.mean(gains))

    usual = mean(Guard())
    print(f"As it is: {usual:+.2f} points over batch statistics.\n")
    print("| number | halved | doubled | moves by less than half a point |")
    print("| --- | ---: | ---: | --- |")
    for name, (less, more) in _variants():
        low, high = (mean(dataclasses.replace(Guard(), **{name: value})) - usual for value in (less, more))
        verdict = "**pass**" if max(abs(low), abs(high)) < 0.5 else "**fail**"
        print(
            f"| `{name}` {getattr(Guard(), name):g} | {low:+.2f} ({less:g}) | {high:+.2f} ({more:g}) | {verdict} |",
            flush=True,
        )


def _variants() -> Iterator[tuple[str, tuple[float, float]]]:
    """Each number that plays a part with canaries; of the growth it is the surplus that is halved and doubled, and
    twice the doubt would be 1, at which the sum could not fall any more."""
    names = ("limit", "confirmed", "allowance", "worth_keeping", "asked", "eagerness", "canaries", "harshest")
    for name in (*names, "mildest", "patience", "quiet"):
        value = getattr(Guard(), name)
        yield name, (type(value)(value / 2), value * 2)
    yield "doubt", (Guard().doubt / 2, 0.99)
    surplus = Guard().growth - 1
    yield "growth", (1 + surplus / 2, 1 + surplus * 2)


def print_kept() -> None:
    """Points over the network that does not adapt, with resets to the source alone and as they are; in brackets how
    many resets there were."""
    print("| network | stream | method | rate | to the source | to what was kept, if better |")
    print("| --- | --- | --- | ---: | ---: | ---: |")
    means = []
    for name, stream, seed, title, rates in TUNED_ON:
        network, batches = models.load(name), _tuned_on(stream, seed)
        reference = _accuracy(_unadapted(network, name), batches)
        for rate in rates:
            gains, texts = [], []
            for guard in (Guard(worth_keeping=1e9), Guard()):
                adapter = tidefast.adapt(
                    network, NAMED[title], reset=guard, source=CANARIES, optimizer=f"adam:lr={rate * 1e-3}"
                )
                history = tidefast.History()
                adapter.callbacks.append(history)
                gains.append(_accuracy(adapter, batches) - reference)
                texts.append(f"{gains[-1]:+.1f} ({sum(record.reset_fraction > 0 for record in history)})")
            means.append(gains)
            print(f"| {name} | `{stream}` | {title} | {rate} | {texts[0]} | {texts[1]} |", flush=True)
    to_source, to_kept = np.mean(means, axis=0)
    print(f"| mean | | | | {to_source:+.2f} | {to_kept:+.2f} |")


def print_doubt() -> None:
    """By how much evidence of harm there is, once in doubt: how often the adapted network is right, the one that does
    not adapt, and both together, on the same images."""
    right: dict[tuple[str, int], list[list[int]]] = {}
    for name, stream, seed, title, rates in TUNED_ON:
        network, batches = models.load(name), _tuned_on(stream, seed)
        unadapted = _unadapted(network, name)
        for rate in rates:
            made = functools.partial(
                tidefast.adapt, network, NAMED[title], source=CANARIES, optimizer=f"adam:lr={rate * 1e-3}"
            )
            own, guarded = made(reset="never"), made(reset="guard")
            for images, labels in batches:
                evidence = guarded.state["reset"]["lost"] if guarded.step else 0.0
                if evidence >= Guard().doubt * Guard().limit:
                    own.network.arena.assign(guarded.network.arena.values)
                    answers = (own.predict(images), unadapted.predict(images), guarded.predict(images))
                    hits = [int((answer.argmax(1) == labels).sum()) for answer in answers]
                    right.setdefault((name, int(evidence)), []).append([*hits, len(labels)])
                guarded(images)
    print("| network | evidence | images | adapted | not adapted | both |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for (name, evidence), found in sorted(right.items()):
        *hits, images = np.sum(found, axis=0)
        shown = " | ".join(f"{100 * hit / images:.1f}" for hit in hits)
        print(f"| {name} | {evidence} to {evidence + 1} | {images:,} | {shown} |")


def _tuned_on(stream: str, seed: int) -> list[Batch]:
    shown = streams.make(stream, part="stream", seed=seed, batch=16, steps=500)
    return [(batch.images, batch.labels) for batch in shown]


def _unadapted(network: torch.nn.Module, name: str) -> tidefast.Adapter:
    return tidefast.adapt(network, "source" if name == "bundled-vit" else "batchnorm")


def print_statistics() -> None:
    """Where batch statistics fail, and where the source as it was trained does: accuracy in percent."""
    trials = {
        "`clean-1k`": (
            "bundled-lite0",
            "bundled-1k",
            streams.make("clean-1k", part="stream", seed=3, batch=32, steps=60),
        ),
        "`drift-easy`, labels in order": (
            "bundled-resnet",
            "bundled",
            streams.make("drift-easy", part="stream", seed=3, batch=16, steps=300, **ORDERED),
        ),
        "`drift`": ("bundled-resnet", "bundled", streams.make("drift", part="stream", seed=3, batch=16, steps=300)),
    }
    print(
        "| stream | source as trained | batch statistics | ETA, plain | ETA + guard, `as_trained=False` | ETA + guard |"
    )
    print("| --- |" + " ---: |" * 5)
    for title, (name, data, stream) in trials.items():
        network, batches = models.load(name), [(batch.images, batch.labels) for batch in stream]
        eta, optimizer = ("eta", None) if data == "bundled-1k" else (METHODS["ETA"], "adam:lr=1e-3")
        contestants = [
            tidefast.adapt(network, "source"),
            tidefast.adapt(network, "batchnorm"),
            tidefast.adapt(network, eta, optimizer=optimizer),
            tidefast.adapt(network, eta, optimizer=optimizer, reset=Guard(as_trained=False), source=_held(data)),
            tidefast.adapt(network, eta, optimizer=optimizer, reset="guard", source=_held(data)),
        ]
        print(f"| {title} | " + " | ".join(f"{_accuracy(one, batches):.1f}" for one in contestants) + " |", flush=True)


def print_confidence() -> None:
    """By how many points the source as it was trained is ahead of batch statistics: as labels say, as canaries in the
    look of the stream say, and as these say with what confidence is lost between them and the stream."""
    small = [("drift", {}), ("drift-easy", {}), ("recurring", {})]
    small += [(f"ccc-mini:level={level}", {}) for level in ("easy", "medium", "hard")]
    small += [(name, ORDERED) for name, _ in small[:2]] + [("ccc-mini:level=medium", ORDERED)]
    trials = [("bundled-resnet", "bundled", name, 16, 480, order) for name, order in small]
    thousand = ("clean-1k", "ccc-1k:level=easy", "ccc-1k:level=medium", "ccc-1k:level=hard")
    trials += [("bundled-lite0", "bundled-1k", name, 32, 96, {}) for name in thousand]
    print("| network | stream | by labels | by canaries | with confidence |")
    print("| --- | --- | ---: | ---: | ---: |")
    for name, data, title, batch, steps, order in trials:
        network, canaries = models.load(name), _held(data)
        trained, batchwise = (tidefast.adapt(network, method) for method in ("source", "batchnorm"))
        known = torch.cat([trained.predict(images).argmax(1) for images in canaries.split(64)])
        stream = streams.make(title, part="stream", seed=3, batch=batch, steps=steps, **order)
        generator, leads = torch.Generator().manual_seed(0), []
        for step in range(0, steps, 8):
            shown, places = stream[step], torch.randperm(len(canaries), generator=generator)[:64]
            dressed = dress(canaries[places], shown.images, generator).split(batch)
            by_labels = by_canaries = confident = 0.0
            for adapter, sign in ((trained, 1), (batchwise, -1)):
                there, here = (
                    torch.cat([adapter.predict(images) for images in batches]) for batches in ([shown.images], dressed)
                )
                by_labels += sign * float((there.argmax(1) == shown.labels).float().mean())
                by_canaries += sign * float((here.argmax(1) == known[places]).float().mean())
                confident += sign * float(confidence(there).mean() - confidence(here).mean())
            leads.append((by_labels, by_canaries, by_canaries + confident))
        shown_leads = " | ".join(f"{100 * lead:+.1f}" for lead in np.mean(leads, 0))
        print(f"| {name} | `{title}`{', labels in order' * bool(order)} | {shown_leads} |", flush=True)


def print_alone() -> None:
    """Without canaries, on the hard level: points over batch statistics, and in brackets the resets."""
    batches = _batches("hard", 43, 500)
    reference = _accuracy(tidefast.adapt(NETWORK, "batchnorm"), batches)
    print("| method | rate | plain | + guard without canaries | + guard |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for (title, method), rate in itertools.product({"Tent": "tent", **METHODS}.items(), (1, 10, 30, 100)):
        alone = tidefast.adapt(NETWORK, method, reset="guard", optimizer=f"adam:lr={rate * 1e-3}")
        shown = []
        for adapter in (_adapter(method, "never", rate), alone, _adapter(method, "guard", rate)):
            history = tidefast.History()
            adapter.callbacks.append(history)
            gain = _accuracy(adapter, batches) - reference
            resets = sum(record.reset_fraction > 0 for record in history)
            shown.append(f"{gain:+.1f}" + (f" ({resets})" if resets else ""))
        print(f"| {title} | {rate} | " + " | ".join(shown) + " |", flush=True)


def print_cost() -> None:
    """CPU time of a step with each policy over that of the plain method, taking turns."""
    batches = _batches("medium", 43, 48)
    print("| method | " + " | ".join(POLICIES) + " |")
    print("| --- |" + " ---: |" * len(POLICIES))
    for title, method in METHODS.items():
        adapters = {policy: _adapter(method, policy, 1) for policy in POLICIES}
        spent = dict.fromkeys(POLICIES, 0.0)
        for k in range(4):
            for policy, adapter in adapters.items():
                started = time.process_time()
                _accuracy(adapter, batches)
                spent[policy] += (time.process_time() - started) * (k > 0)  # the first round warms up
        print(f"| {title} | " + " | ".join(f"{seconds / spent['never']:.2f}" for seconds in spent.values()) + " |")


def draw_life() -> None:
    """One stream at ten times the rate: what labels say of adapting with and without the guard, and what it saw."""
    window, batches = 20, _batches("hard", 43, 400)
    reference, plain, guarded = (
        tidefast.adapt(NETWORK, "batchnorm"),
        _adapter("tent", "never", 10),
        _adapter("tent", "guard", 10),
    )
    seen: list[StepRecord] = []
    guarded.callbacks.append(lambda _, record: seen.append(record))
    right = {
        name: np.array([_accuracy(adapter, [batch]) for batch in batches]).reshape(-1, window).mean(1)
        for name, adapter in (("reference", reference), ("plain", plain), ("guard", guarded))
    }
    looks = [record for record in seen if "agreement" in record.measurements]
    asked = [record.step for record in looks]
    figure, (lead, canaries, evidence) = plt.subplots(3, 1, figsize=(9, 7), sharex=True, layout="constrained")
    middles = np.arange(window / 2, len(batches), window)
    lead.plot(middles, right["plain"] - right["reference"], label="Tent", color="tab:orange")
    lead.plot(middles, right["guard"] - right["reference"], label="Tent + guard", color="black")
    lead.axhline(0, color="grey", linewidth=0.8)
    lead.set(ylabel="points over\nnot adapting", title="Tent at ten times its rate, hard level, seed 43")
    for name, title, colour in (
        ("agreement", "adapted", "black"),
        ("reference_agreement", "not adapted", "tab:blue"),
    ):
        values = [100 * record.measurements[name] for record in looks]
        canaries.plot(asked, values, label=title, color=colour, linewidth=1)
    canaries.set(ylabel="dressed canaries\nanswered right, %", ylim=(0, None))
    evidence.plot(asked, [record.measurements["evidence"] for record in looks], color="black", label="evidence of harm")
    evidence.axhline(Guard().limit, color="firebrick", linestyle="--", linewidth=1, label="the limit")
    rate = evidence.twinx()
    rate.plot([r.step for r in seen], [r.measurements["rate"] for r in seen], color="tab:green", linewidth=1)
    rate.set(ylabel="learning rate / given", yscale="log")
    rate.yaxis.label.set_color("tab:green")
    evidence.set(xlabel="batch", ylabel="standard errors")
    for axes in (lead, canaries, evidence):
        for record in seen:
            if record.reset_fraction:
                axes.axvline(record.step, color="firebrick", linewidth=0.8, linestyle=":")
        axes.legend(fontsize=8, loc="upper right")
    figure.savefig(ROOT / "docs" / "images" / "guard-life.png", dpi=130)


def _adapter(method: str, policy: str | Guard, rate: float) -> tidefast.Adapter:
    source = CANARIES if policy == "guard" or isinstance(policy, Guard) else None
    return tidefast.adapt(NETWORK, method, reset=policy, source=source, optimizer=f"adam:lr={rate * 1e-3}")


def _batches(level: str, seed: int, steps: int) -> list[Batch]:
    stream = streams.make(f"ccc-mini:level={level}", part="stream", seed=seed, batch=16, steps=steps)
    return [(batch.images, batch.labels) for batch in (stream[step] for step in range(steps))]


def _accuracy(adapter: tidefast.Adapter, batches: list[Batch]) -> float:
    """In percent, adapting on the way."""
    return 100 * float(np.mean([(adapter(images).argmax(1) == labels).float().mean() for images, labels in batches]))


def _held(data: str) -> Tensor:
    """Images [n, 3, height, width] that no stream shows."""
    return torch.as_tensor(np.asarray(datasets.open(f"{data}:part=held").images)).permute(0, 3, 1, 2).float() / 255


NETWORK, CANARIES = models.load("bundled-resnet"), _held("bundled")

if __name__ == "__main__":
    main(*sys.argv[1:])
