"""The name service, and queryable state, for Spark applications."""

from __future__ import annotations

from sparkpipeline.attach import AttachedState, AttachStatus, attach_state
from sparkpipeline.configuration import (
    close_ha_services,
    get_leader_retriever,
    ha_config,
    to_spark_settings,
    use_ha_config,
)
from sparkpipeline.data_source import LodestarDataSource, source_options
from sparkpipeline.executor_nodes import ExecutorNodes, start_nodes
from sparkpipeline.log_publication import attach_log_state
from sparkpipeline.operator_functions import (
    OperatorContext,
    OperatorFunction,
    run_operator,
)
from sparkpipeline.operator_publication import OperatorStatePublication
from sparkpipeline.sink import publish_state, publish_states
from sparkpipeline.state_options import StateSpec


__all__ = [
    "AttachStatus",
    "AttachedState",
    "ExecutorNodes",
    "LodestarDataSource",
    "OperatorContext",
    "OperatorFunction",
    "OperatorStatePublication",
    "StateSpec",
    "attach_log_state",
    "attach_state",
    "close_ha_services",
    "get_leader_retriever",
    "ha_config",
    "publish_state",
    "publish_states",
    "run_operator",
    "source_options",
    "start_nodes",
    "to_spark_settings",
    "use_ha_config",
]
