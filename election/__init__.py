"""Becoming the leader, and what only a leader may write."""

from __future__ import annotations

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
    "StoreOperation",
    "VersionedValue",
]
