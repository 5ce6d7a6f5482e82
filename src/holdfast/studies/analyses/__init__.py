"""One file per analysis."""

from holdfast.studies.analyses import concentration

__all__ = ["concentration"]
