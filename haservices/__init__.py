"""One interface to every name service, switched by one line of configuration."""

from __future__ import annotations

from haservices.campaign import Leadership, campaign
from haservices.campaign_async import AsyncLeadership, campaign_async
from haservices.config import Backend, HAConfig, OnSuspended, ServerAddress
from haservices.factory import open_ha_services
from haservices.interface import (
    ComponentInformation,
    Guarantee,
    HAOperations,
    HAServices,
    SessionInformation,
)


__all__ = [
    "AsyncLeadership",
    "Backend",
    "ComponentInformation",
    "Guarantee",
    "HAConfig",
    "HAOperations",
    "HAServices",
    "Leadership",
    "OnSuspended",
    "ServerAddress",
    "SessionInformation",
    "campaign",
    "campaign_async",
    "open_ha_services",
]
