"""Every table and figure of the paper: what to run for it, and ours beside theirs."""

from tidefast.paper.reproduction.claims import Claim, Verdict, agreement, judge
from tidefast.paper.reproduction.outcome import Outcome, summary
from tidefast.paper.reproduction.plan import Plan, plan
from tidefast.paper.reproduction.targets import Target, chosen, everything

__all__ = [
    "Claim",
    "Outcome",
    "Plan",
    "Target",
    "Verdict",
    "agreement",
    "chosen",
    "everything",
    "judge",
    "plan",
    "summary",
]
