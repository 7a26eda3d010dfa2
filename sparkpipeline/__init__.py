"""The name service, and queryable state, for Spark applications."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nameservice.lazy import lazy_face


if TYPE_CHECKING:
    from sparkpipeline.attach.attach import AttachedState, AttachStatus, attach_state
    from sparkpipeline.configuration import (
        close_ha_services,
        get_leader_retriever,
        ha_config,
        to_spark_settings,
        use_ha_config,
    )
    from sparkpipeline.failures import lodestar_error
    from sparkpipeline.log.publication import attach_log_state
    from sparkpipeline.operators.functions import (
        OperatorContext,
        OperatorFunction,
        run_operator,
    )
    from sparkpipeline.operators.publication import OperatorStatePublication
    from sparkpipeline.standby.leadership import StandbyLeadership
    from sparkpipeline.standby.run import run_with_standby
    from sparkpipeline.state.data_source import LodestarDataSource, source_options
    from sparkpipeline.state.executor_nodes import ExecutorNodes, start_nodes
    from sparkpipeline.state.options import StateSpec
    from sparkpipeline.state.sink import publish_state, publish_states


__all__ = [
    "AttachStatus",
    "AttachedState",
    "ExecutorNodes",
    "LodestarDataSource",
    "OperatorContext",
    "OperatorFunction",
    "OperatorStatePublication",
    "StandbyLeadership",
    "StateSpec",
    "attach_log_state",
    "attach_state",
    "close_ha_services",
    "get_leader_retriever",
    "ha_config",
    "lodestar_error",
    "publish_state",
    "publish_states",
    "run_operator",
    "run_with_standby",
    "source_options",
    "start_nodes",
    "to_spark_settings",
    "use_ha_config",
]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "sparkpipeline.attach.attach": (
            "AttachedState",
            "AttachStatus",
            "attach_state",
        ),
        "sparkpipeline.configuration": (
            "close_ha_services",
            "get_leader_retriever",
            "ha_config",
            "to_spark_settings",
            "use_ha_config",
        ),
        "sparkpipeline.failures": ("lodestar_error",),
        "sparkpipeline.state.data_source": (
            "LodestarDataSource",
            "source_options",
        ),
        "sparkpipeline.state.executor_nodes": (
            "ExecutorNodes",
            "start_nodes",
        ),
        "sparkpipeline.log.publication": ("attach_log_state",),
        "sparkpipeline.operators.functions": (
            "OperatorContext",
            "OperatorFunction",
            "run_operator",
        ),
        "sparkpipeline.operators.publication": ("OperatorStatePublication",),
        "sparkpipeline.standby.leadership": ("StandbyLeadership",),
        "sparkpipeline.standby.run": ("run_with_standby",),
        "sparkpipeline.state.sink": (
            "publish_state",
            "publish_states",
        ),
        "sparkpipeline.state.options": ("StateSpec",),
    },
)
