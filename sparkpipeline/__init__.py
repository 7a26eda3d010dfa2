"""The name service for Spark applications: on the driver and inside tasks."""

from __future__ import annotations

from sparkpipeline.configuration import (
    close_ha_services,
    get_leader_retriever,
    ha_config,
    to_spark_settings,
    use_ha_config,
)


__all__ = [
    "close_ha_services",
    "get_leader_retriever",
    "ha_config",
    "to_spark_settings",
    "use_ha_config",
]
