"""Every table and figure of the paper: what to run for it, and ours beside theirs."""

from holdfast.studies.reproduction.claims import Claim, Verdict, agreement, judge
from holdfast.studies.reproduction.outcome import Outcome, summary
from holdfast.studies.reproduction.plan import Plan, plan
from holdfast.studies.reproduction.targets import Target, chosen, everything

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
