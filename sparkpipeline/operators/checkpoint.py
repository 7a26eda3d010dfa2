"""
Where an operator keeps what its batches leave: beside Spark's own checkpoint.

::

    <checkpoint location>/operator/
        manifests/<batch id>                one of a batch, created if absent
        batches/<batch id>/<random>/…       the files of one execution of a batch

Manifests are written by the class that writes Spark's offset log, on whatever file
system the checkpoint is: they are as safe as that log is there.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import TYPE_CHECKING, Any, Final, final

from py4j.protocol import Py4JError, Py4JJavaError

from nameservice import ConfigurationError, get_logger
from rescaling import OperatorCheckpointError
from sparkpipeline.checkpoint_files import checkpoint_file_manager
from sparkpipeline.java_classes import java_class
from sparkpipeline.operators.manifest import (
    OperatorManifest,
    decode_manifest,
    encode_manifest,
)


if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["OperatorCheckpoint"]

_DIRECTORY: Final = "operator"
_RANDOM_SIZE_BYTES: Final = 8


@final
class OperatorCheckpoint:
    """
    The operator's directory of one query; on the driver.

    Args:
        session: Where the query runs.
        location: Its checkpoint location.

    Raises:
        ConfigurationError: If this Spark writes its checkpoints in an unknown way.
        OperatorCheckpointError: If there cannot be such a directory.
    """

    def __init__(self, session: SparkSession, location: str) -> None:
        jvm: Any = session.sparkContext._jvm  # noqa: SLF001 (there is no other way to it)
        java_session: Any = session._jsparkSession  # noqa: SLF001 (as above)
        self._path = java_class(jvm, "org.apache.hadoop.fs.Path")
        spark_root = self._path(location)
        self._offsets = self._path(spark_root, "offsets")
        self._root = self._path(spark_root, _DIRECTORY)
        self._manifests = self._path(self._root, "manifests")
        self._batches = self._path(self._root, "batches")
        try:
            hadoop_conf = java_session.sessionState().newHadoopConf()
            self._files = checkpoint_file_manager(jvm, self._root, hadoop_conf)
            self._files.mkdirs(self._manifests)
            self._files.mkdirs(self._batches)
        except Py4JJavaError as error:
            raise self._failed(self._root, error) from error

    @classmethod
    def of_query(cls, session: SparkSession, query_id: str) -> OperatorCheckpoint:
        """
        Return the directory of a running query.

        Args:
            session: The session that the query was started with.
            query_id: The query.

        Raises:
            ConfigurationError: If Spark does not tell where its checkpoint is.
        """
        java_session: Any = session._jsparkSession  # noqa: SLF001 (no other way to it)
        try:
            query = java_session.streams().get(query_id)
            location = query.streamingQuery().resolvedCheckpointRoot()
        except (Py4JError, AttributeError) as error:
            raise ConfigurationError(
                f"Spark does not tell where query {query_id} keeps its checkpoint: "
                "start the writer in the session that the DataFrame is of"
            ) from error
        return cls(session, location)

    def batch_ids(self) -> list[int]:
        """Return the batches that have a manifest, in rising order."""
        return self._ids(self._manifests)

    def read(self, batch_id: int) -> OperatorManifest:
        """
        Return the manifest of a batch.

        Raises:
            OperatorCheckpointError: If it is damaged, or cannot be read.
        """
        path = self._path(self._manifests, str(batch_id))
        return decode_manifest(
            self._content(path), batch_id=batch_id, path=path.toString()
        )

    def offsets_digest(self, batch_id: int) -> str | None:
        """
        Return what tells apart the input of one batch from that of another.

        Equal ones are of batches that end at the same offsets of all sources; None is
        of a batch whose offsets Spark has not kept.

        Raises:
            OperatorCheckpointError: If Spark's offset log cannot be read.
        """
        path = self._path(self._offsets, str(batch_id))
        if not self._files.exists(path):
            return None
        # A version, times and settings, and then the offsets.
        lines = self._content(path).split(b"\n", 2)
        return hashlib.sha256(lines[-1]).hexdigest()

    def publish(self, manifest: OperatorManifest) -> None:
        """
        Write *manifest*, unless its batch has one; `read` says which one counts.

        Raises:
            OperatorCheckpointError: If it cannot be written, and none is there.
        """
        path = self._path(self._manifests, str(manifest.batch_id))
        try:
            stream = self._files.createAtomic(path, False)  # noqa: FBT003 (Spark's interface)
            stream.write(bytearray(encode_manifest(manifest)))
            stream.close()  # this is what makes it visible, all of it at once
        except Py4JJavaError as error:
            if not self._files.exists(path):
                raise self._failed(path, error) from error

    def new_directory(self, batch_id: int) -> str:
        """Return a name for the files of one execution, relative to `root`."""
        return f"batches/{batch_id}/{secrets.token_hex(_RANDOM_SIZE_BYTES)}"

    def path(self, *names: str) -> str:
        """Return the path of what is called *names* in this directory."""
        path = self._root
        for name in names:
            path = self._path(path, name)
        text: str = path.toString()
        return text

    def keep(self, batch_ids: list[int]) -> None:
        """
        Delete what batches before the first of *batch_ids* have left.

        Nothing depends on it: what cannot be deleted now is deleted later.
        """
        first = min(batch_ids)
        try:
            # Manifests go first: one without its files would be an error.
            for directory in (self._manifests, self._batches):
                for batch_id in self._ids(directory):
                    if batch_id < first:
                        self._files.delete(self._path(directory, str(batch_id)))
        except (Py4JJavaError, OperatorCheckpointError) as error:
            get_logger(component="operator").warning(
                "cleanup.failed", path=self._root.toString(), error=str(error)
            )

    def _content(self, path: Any) -> bytes:
        try:
            stream = self._files.open(path)
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()
        except Py4JJavaError as error:
            raise self._failed(path, error) from error

    def _ids(self, directory: Any) -> list[int]:
        try:
            names = [one.getPath().getName() for one in self._files.list(directory)]
        except Py4JJavaError as error:
            raise self._failed(directory, error) from error
        return sorted(int(name) for name in names if re.fullmatch(r"\d+", name))

    def _failed(self, path: Any, error: Py4JJavaError) -> OperatorCheckpointError:
        return OperatorCheckpointError(
            path.toString(), f"it cannot be read or written: {error.java_exception}"
        )
