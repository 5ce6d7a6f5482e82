"""Evidence: a bet on labels that grows only if adapting is better, or only if it is worse."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

_LARGEST_BET = 0.9
_MEMORY = 0.99
"""What a label counts for in the next bet, after each further one: about the last hundred decide."""


@dataclass(frozen=True)
class Evidence:
    """Who answers, and what labels say against it so far.

    A gambler begins with 1 and bets the share `bet` of it, chosen before the label is seen, that whoever does not
    answer is right where the other is wrong. If that is never more likely than the opposite, the chance that the
    wealth ever reaches 1 / a is at most a (Ville's inequality), however the stream drifts and whenever one looks. Then
    the other one answers, and the next trial begins with 1 again. Trial k may spend a = 6 alpha / (pi k)^2 of the
    error alpha; the sum over all trials is alpha.

    >>> evidence = Evidence()
    >>> for _ in range(8):  # labels with which only the adapted network is right
    ...     evidence = evidence.after(1, alpha=0.05)
    >>> evidence.adapted, evidence.trial
    (True, 2)
    """

    adapted: bool = False
    """Whether the adapted network answers; at first the reference does."""
    trial: int = 1
    wealth: float = 1.0
    balance: float = 1.0
    """Labels for the one that does not answer less those against, the latest counting most; it begins as if one was."""
    weight: float = 2.0
    """How many labels that balance is of."""

    @property
    def bet(self) -> float:
        """lambda: the share of the wealth at stake with the next label."""
        return min(_LARGEST_BET, max(0.0, self.balance / self.weight))

    def needed(self, alpha: float) -> float:
        """The wealth at which the other one answers."""
        return (math.pi * self.trial) ** 2 / (6.0 * alpha)

    def after(self, difference: int, alpha: float) -> Evidence:
        """With one more label: 1 if only the adapted network is right, -1 if only the reference is, else 0."""
        if difference == 0:
            return self
        outcome = -difference if self.adapted else difference
        wealth = self.wealth * (1.0 + self.bet * outcome)
        if wealth >= self.needed(alpha):
            return Evidence(adapted=not self.adapted, trial=self.trial + 1)
        return replace(
            self, wealth=wealth, balance=_MEMORY * self.balance + outcome, weight=_MEMORY * self.weight + 1.0
        )
