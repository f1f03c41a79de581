"""The gateway's name for what ``core.rationing`` holds. Nothing else may come in here."""

from wastegate.core.rationing import Rationing

__all__ = ["Rationing"]
