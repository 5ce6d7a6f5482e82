"""The paper's contestants by name, with the settings that each scale gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidefast.core.specification import Specification
from tidefast.errors import UnknownNameError

if TYPE_CHECKING:
    from tidefast.paper.scale import Setting

MATCHED = "RDumb (matched)"
"""RDumb that resets as often as ASR does."""
FAST = {"name": "adam", "lr": 1e-2}
_PUBLISHED = {"name": "adam", "lr": 1e-3}
_LABELLED = "bundled-train"


def _fast(name: str, **options: Any) -> dict[str, Any]:
    return {"method": {"name": name, **options}, "optimizer": FAST}


def _own(name: str, optimizer: Mapping[str, Any] | None = _PUBLISHED, **options: Any) -> dict[str, Any]:
    """A method at its published settings for CIFAR, those of benchmarks/methods.yaml."""
    return {"method": {"name": name, **options}, "optimizer": optimizer}


_ETA = {"similarity_margin": 0.4}
_EATA = {"similarity_margin": 0.4, "fisher_weight": 1.0}
_RATE_4 = {"name": "adam", "lr": 1e-4}
_MINI: dict[str, dict[str, Any]] = {
    "Source": _own("source"),
    "BatchNorm": _own("batchnorm"),
    "ETA": _fast("eta", **_ETA),
    "EATA": _fast("eata", **_EATA),
    "ROID": _fast("roid"),
    "CMF": _fast("cmf"),
    "ETA + COME": _fast("eta", **_ETA, objective="come"),
    "EATA + COME": _fast("eata", **_EATA, objective="come"),
    "ROID + COME": _fast("roid", objective="come"),
    **{
        f"{base.upper()} + ReservoirTTA": _fast("reservoir", base={"name": base, **options}, batch_size=16)
        | {"source": _LABELLED}
        for base, options in (("eta", _ETA), ("eata", _EATA), ("roid", {}))
    },
    "PeTTA": _own("petta", preset="for_cifar") | {"source": _LABELLED},
    "CoTTA": _own("cotta", preset="for_cifar"),
    "SAR": _own("sar", {"name": "sgd", "lr": 1e-3, "momentum": 0.9}),
    "LAW": _own("law", None, learning_rate=1e-3),
    "PALM": _own("palm", None, learning_rate=5e-4, temperature=50.0, gradient_limit=1.0),
    "SANTA": _own("santa") | {"source": _LABELLED},
    "RMT": _own("rmt", preset="for_cifar") | {"source": _LABELLED},
    "RMT + Source-free": _own("rmt", preset="for_cifar", source_weight=0.0) | {"source": _LABELLED},
    "RoTTA": _own("rotta") | {"source": _LABELLED},
    "DPLOT": _own("dplot", _RATE_4) | {"source": _LABELLED},
    "DATTA": _own("datta", _RATE_4, preset="for_cifar") | {"source": _LABELLED},
    # A step of these takes many times as long: shorter streams.
    "ViDA": _own("vida", _RATE_4, preset="for_cifar") | {"source": _LABELLED, "steps": 250},
    "PETAL": _own("petal", preset="for_cifar") | {"source": _LABELLED, "steps": 250},
    "REM": _own("rem") | {"steps": 250},
    "CMAE": _own("cmae", {"name": "adam", "lr": 1e-5}) | {"steps": 250},
}
_FULL: dict[str, dict[str, Any]] = {
    "Source": {"method": "source"},
    "BatchNorm": {"method": "batchnorm"},
    **{f"{base.upper()} + COME": {"method": {"name": base, "objective": "come"}} for base in ("eta", "eata", "roid")},
    **{
        f"{base.upper()} + ReservoirTTA": {"method": {"name": "reservoir", "base": base}}
        for base in ("eta", "eata", "roid")
    },
    "RMT + Source-free": {"method": {"name": "rmt", "source_weight": 0.0}},
    **{
        name: {"method": name.lower()}
        for name in (
            *("ETA", "EATA", "ROID", "CMF", "PeTTA", "CoTTA", "SAR", "LAW", "PALM", "SANTA", "RMT"),
            *("RoTTA", "DPLOT", "DATTA", "ViDA", "PETAL", "REM", "CMAE"),
        )
    },
}
_VIT = {"alpha0": 5e-4, "mu0": 1e-3, "lambda_r": 0.1}


def policy(name: str, setting: Setting) -> dict[str, Any]:
    """A reset policy by name: `never`, `RDumb`, `RDumb (matched)`, `SAR reset`, `DA-TTA reset`, `ASR`.

    Or any other as `run` takes it: `asr-full`. Intervals are those of the setting: `asr-interval-20000` means the
    counterpart of 20,000 batches.
    """
    if name == "RDumb":
        return {"name": "periodic", "every": setting.every, "title": "RDumb"}
    if name == MATCHED:
        return {"name": "periodic", "every": setting.matched, "title": MATCHED}
    if name.startswith("asr-interval"):
        published = int(name.rpartition("-")[2]) if name[-1].isdigit() else 20_000
        every = setting.interval(published)
        return {"name": "asr", "when": f"interval:every={every}", "title": f"ASR (every {every})"}
    named = {
        "never": {"name": "never"},
        "SAR reset": {"name": "confidence", "title": "SAR's reset"},
        "DA-TTA reset": {"name": "distribution", "title": "DA-TTA's reset"},
        "ASR": {"name": "asr"},
    }
    if name in named:
        return named[name]
    part = Specification.parse(name)
    return {"name": part.name.lower(), **part.options, **({"title": part.title} if part.title else {})}


def mini(method: str, reset: dict[str, Any], model: str) -> dict[str, Any]:
    """Fields of an experiment on the bundled benchmark."""
    fields = dict(_known(_MINI, method))
    fields["method"] = {**fields["method"], "title": method}
    if reset["name"] == "distribution" or "probe" in str(reset.get("measure", "")):
        fields["source"] = _LABELLED
    network = {} if model == "resnet" and method not in ("REM", "CMAE") else {"model": "bundled-vit"}
    # ASR as for residual networks: the published alpha0 for transformers, for a thousand classes, never resets here.
    return {**fields, **network, "reset": reset}


def full(method: str, reset: dict[str, Any], model: str, folders: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Fields of an experiment on the published benchmarks, with the published settings."""
    fields = dict(_known(_FULL, method))
    spelled = Specification.parse(fields["method"])
    fields["method"] = {"name": spelled.name, **spelled.options, "title": method}
    network = "vit_b_16" if model == "vit" or method in ("REM", "CMAE") else "resnet50"
    fields["model"] = {"name": network, **folders.get(network, {})}
    source = folders.get("source", {}).get("path")
    return {
        **fields,
        **({} if source is None else {"source": source}),
        "reset": _for_transformer(reset) if network == "vit_b_16" else reset,
    }


def _for_transformer(reset: dict[str, Any]) -> dict[str, Any]:
    return {**reset, **_VIT} if reset["name"].startswith("asr") else reset


def _known(table: Mapping[str, dict[str, Any]], name: str) -> dict[str, Any]:
    if name not in table:
        raise UnknownNameError(f"unknown contestant {name!r}; known: {', '.join(table)}")
    return table[name]
