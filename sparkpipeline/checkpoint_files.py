"""What Spark writes its checkpoints with, for files of ours beside them."""

from __future__ import annotations

from typing import Any, Final

from py4j.protocol import Py4JJavaError

from nameservice import ConfigurationError
from sparkpipeline.java_classes import java_class


__all__ = ["checkpoint_file_manager"]

_FILE_MANAGERS: Final = (
    # Spark 4.1 and newer, and 4.0.
    "org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager$",
    "org.apache.spark.sql.execution.streaming.CheckpointFileManager$",
)


def checkpoint_file_manager(jvm: Any, path: Any, hadoop_conf: Any) -> Any:
    """
    Return what Spark itself writes checkpoints with.

    Raises:
        ConfigurationError: If this Spark writes its checkpoints in an unknown way.
    """
    loader = java_class(jvm, "java.lang.Thread").currentThread().getContextClassLoader()
    for name in _FILE_MANAGERS:
        try:
            companion = loader.loadClass(name).getField("MODULE$").get(None)
        except Py4JJavaError:
            continue
        return companion.create(path, hadoop_conf)
    raise ConfigurationError(
        "this version of Spark writes its checkpoints in an unknown way: use 4.0 to 4.3"
    )
