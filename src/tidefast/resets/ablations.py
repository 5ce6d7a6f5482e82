"""The variants of ASR in the paper's ablation tables, each under a name of its own."""

from __future__ import annotations

from typing import Any

from tidefast.resets.asr import ASR
from tidefast.resets.base import registry

ABLATIONS: dict[str, dict[str, Any]] = {
    # Table 5: one part at a time.
    "asr-interval": {"when": "interval:every=20000"},
    "asr-full": {"extent": "full"},
    "asr-no-recovery": {"accumulation": "none"},
    "asr-strength-constant": {"strength": "constant"},
    "asr-momentum-constant": {"momentum": "constant:value=0.995"},
    # Table 9: later than the standard rule.
    "asr-delay-0.001": {"when": "adaptive:delay=0.001"},
    "asr-delay-0.01": {"when": "adaptive:delay=0.01"},
    # Table 10: neither coefficient follows the inconsistency.
    "asr-no-adjustment": {"strength": "constant", "momentum": "constant:value=0.995"},
    # Table 16: at fixed intervals.
    **{f"asr-interval-{every}": {"when": f"interval:every={every}"} for every in (1000, 10000, 20000, 50000)},
    # Table 17: a fixed share.
    **{f"asr-share-{percent}": {"extent": f"fixed:part={percent / 100}"} for percent in (20, 50, 80, 100)},
    # Table 18: the reset alone.
    "asr-reset-only": {"accumulation": "none", "momentum": "constant:value=0.995"},
    # Table 19, and its two neighbours.
    "asr-cumulative": {"accumulation": "cumulative"},
    "asr-exponential": {"accumulation": "exponential"},
    # Table 20, beside asr and asr-strength-constant.
    "asr-strength-inconsistency": {"strength": "inconsistency"},
    "asr-strength-inverse": {"strength": "inverse"},
    "asr-strength-linear": {"strength": "linear"},
    # Table 21, beside asr and asr-momentum-constant.
    "asr-momentum-inconsistency": {"momentum": "inconsistency"},
    "asr-momentum-inverse": {"momentum": "inverse"},
    "asr-momentum-squared": {"momentum": "squared"},
    # Other measures of concentration.
    "asr-mean-of-softmax": {"measure": "mean-of-softmax"},
    "asr-without-largest": {"measure": "without-largest:share=0.1"},
}
"""By name, what differs from `ASR`."""

for _name, _changes in ABLATIONS.items():
    registry.variant(_name, ASR.name, **_changes)
