"""Every table and figure of the paper: what to run for it, and ours beside theirs."""

from tidefast.paper.reproduction.claims import Claim, ClaimVerdict, agreement, judge
from tidefast.paper.reproduction.outcome import TargetOutcome, summary
from tidefast.paper.reproduction.plan import Plan, plan
from tidefast.paper.reproduction.targets import ReproductionTarget, chosen, everything

__all__ = [
    "Claim",
    "ClaimVerdict",
    "Plan",
    "ReproductionTarget",
    "TargetOutcome",
    "agreement",
    "chosen",
    "everything",
    "judge",
    "plan",
    "summary",
]
