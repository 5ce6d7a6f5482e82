"""The kinds of alarms, by name."""

from __future__ import annotations

ADAPTATION = ("resets", "concentration", "disagreement", "canaries", "nonfinite")
"""Kinds that end when somebody takes the stream back to an earlier state."""

OF_A_STREAM = (*ADAPTATION, "input")
"""Kinds that the steps of a stream raise and clear."""

KINDS = ("resets", "concentration", "disagreement", "canaries", "input", "nonfinite", "lost", "snapshots", "partition")
"""Every kind of alarm; the last two are about the service, "lost" about a stream or all, the others about a stream."""
