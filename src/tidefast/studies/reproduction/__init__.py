"""Every table and figure of the paper: what to run for it, and ours beside theirs."""

from tidefast.studies.reproduction.claims import Claim, Verdict, agreement, judge
from tidefast.studies.reproduction.outcome import Outcome, summary
from tidefast.studies.reproduction.plan import Plan, plan
from tidefast.studies.reproduction.targets import Target, chosen, everything

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
