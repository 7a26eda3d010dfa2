"""
How much leader stores may hold; pure.

A leader store is for what a job must find again: addresses, decisions, checkpoints.  A
contender may write as much as it likes within a commit, and again and again; so the
paths and values of a component have a limit, and those of all.
"""

from __future__ import annotations

from typing import final

from attrs import field, frozen, validators

from nameservice import StorageError


__all__ = ["StoreFullError", "StoreLimits"]


@final
class StoreFullError(StorageError):
    """A commit would make a store, or all of them, larger than they may be."""


@final
@frozen(kw_only=True)
class StoreLimits:
    """
    The limits.

    Attributes:
        bytes_max: Paths and values of all components, with what it takes to keep them.
        bytes_per_component_max: Those of one.
    """

    bytes_max: int = field(default=2**50, validator=validators.ge(1))
    bytes_per_component_max: int = field(default=2**50, validator=validators.ge(1))

    def check(self, *, component_id: str, component_bytes: int, all_bytes: int) -> None:
        """
        Return if so much may be held.

        Args:
            component_id: Which component has grown.
            component_bytes: What it would hold.
            all_bytes: What all would hold.

        Raises:
            StoreFullError: Otherwise; says which limit, and what to do.
        """
        if component_bytes > self.bytes_per_component_max:
            message = (
                f"the store of {component_id} would hold {component_bytes:,} bytes, at "
                f"most {self.bytes_per_component_max:,} are allowed: delete what is "
                "not needed any more, or raise store_bytes_per_component_max"
            )
            raise StoreFullError(message)
        if all_bytes > self.bytes_max:
            message = (
                f"all stores would hold {all_bytes:,} bytes, at most "
                f"{self.bytes_max:,} are allowed: clean up components that are gone, "
                "or raise store_bytes_max"
            )
            raise StoreFullError(message)
