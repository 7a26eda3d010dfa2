"""Finding the leader."""

from __future__ import annotations

from retrieval.core import (
    ContactLost,
    ContactRestored,
    ContactSuspended,
    NotifyLeader,
    PublicationReceived,
    RetrieverCore,
    RetrieverEvent,
)
from retrieval.driver import LeaderRetrievalDriver
from retrieval.information import LeaderInformation, Publication
from retrieval.listener import LeaderRetrievalListener
from retrieval.service import LeaderRetriever


__all__ = [
    "ContactLost",
    "ContactRestored",
    "ContactSuspended",
    "LeaderInformation",
    "LeaderRetrievalDriver",
    "LeaderRetrievalListener",
    "LeaderRetriever",
    "NotifyLeader",
    "Publication",
    "PublicationReceived",
    "RetrieverCore",
    "RetrieverEvent",
]
