"""Finding the leader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nameservice.lazy import lazy_face


if TYPE_CHECKING:
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

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "retrieval.core": (
            "ContactLost",
            "ContactRestored",
            "ContactSuspended",
            "NotifyLeader",
            "PublicationReceived",
            "RetrieverCore",
            "RetrieverEvent",
        ),
        "retrieval.driver": ("LeaderRetrievalDriver",),
        "retrieval.information": (
            "LeaderInformation",
            "Publication",
        ),
        "retrieval.listener": ("LeaderRetrievalListener",),
        "retrieval.service": ("LeaderRetriever",),
    },
)
