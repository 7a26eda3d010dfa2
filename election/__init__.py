"""Becoming the leader, and what only a leader may write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nameservice.lazy import lazy_face


if TYPE_CHECKING:
    from election.contender import ContenderInformation, LeaderContender, LeaderSession
    from election.driver import LeaderElectionDriver
    from election.holder import HolderCore
    from election.service import LeaderElection
    from election.store import (
        Delete,
        LeaderStore,
        LeaderStoreDriver,
        Put,
        StoreOperation,
        VersionedValue,
    )
    from election.store_watch import StoreChange, StoreFeed, StoreFeeds, StoreWatch


__all__ = [
    "ContenderInformation",
    "Delete",
    "HolderCore",
    "LeaderContender",
    "LeaderElection",
    "LeaderElectionDriver",
    "LeaderSession",
    "LeaderStore",
    "LeaderStoreDriver",
    "Put",
    "StoreChange",
    "StoreFeed",
    "StoreFeeds",
    "StoreOperation",
    "StoreWatch",
    "VersionedValue",
]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "election.contender": (
            "ContenderInformation",
            "LeaderContender",
            "LeaderSession",
        ),
        "election.driver": ("LeaderElectionDriver",),
        "election.holder": ("HolderCore",),
        "election.service": ("LeaderElection",),
        "election.store": (
            "Delete",
            "LeaderStore",
            "LeaderStoreDriver",
            "Put",
            "StoreOperation",
            "VersionedValue",
        ),
        "election.store_watch": (
            "StoreChange",
            "StoreFeed",
            "StoreFeeds",
            "StoreWatch",
        ),
    },
)
