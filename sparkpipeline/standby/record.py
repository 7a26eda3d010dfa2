"""What a leading driver leaves in the leader store for those that come after it."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from attrs import asdict, frozen

from nameservice import ConfigurationError


if TYPE_CHECKING:
    from collections.abc import Callable

    from election import LeaderStore


__all__ = ["DRIVER", "DriverRecord", "check_record", "code_version", "read_record"]

DRIVER: Final = "standby/driver"
"""The path in the leader store of the job."""

_VERSION_LENGTH: Final = 16


@final
@frozen(kw_only=True)
class DriverRecord:
    """
    Who led last.

    Attributes:
        application: Its name, which is Spark's.
        version: Of its code.
        contender_id: As which it contended, or None if that is not known.
        epoch: Of its leadership.
    """

    application: str
    version: str
    contender_id: str | None
    epoch: int

    def to_bytes(self) -> bytes:
        """Return it as it is stored."""
        return json.dumps(asdict(self)).encode()


def read_record(store: LeaderStore) -> DriverRecord | None:
    """Return who led last, or None; of another version of Lodestar likewise."""
    found = store.get(DRIVER)
    if found is None:
        return None
    try:
        return DriverRecord(**json.loads(found.value))
    except (ValueError, TypeError):
        return None


def check_record(
    record: DriverRecord | None,
    *,
    job_id: str,
    application: str,
    version: str,
    is_other_version_admitted: bool,
) -> None:
    """
    Refuse to stand by for an application that is another one.

    Raises:
        ConfigurationError: If the name differs; or the version, unless that is
            admitted.
    """
    if record is None:
        return
    if record.application != application:
        raise ConfigurationError(
            f"{job_id} is the job of the application {record.application!r}, not of "
            f"{application!r}: give each application a job id of its own, or end the "
            f"old one for good with HAServices.cleanup({job_id!r})"
        )
    if record.version != version and not is_other_version_admitted:
        raise ConfigurationError(
            f"the driver that leads {job_id} runs version {record.version} of the "
            f"application, this one {version}: for a rolling upgrade, start it with "
            'on_other_version="admit"'
        )


def code_version(application: Callable[..., Any]) -> str:
    """
    Return what tells the file that *application* is in apart from another one.

    Raises:
        ConfigurationError: If it is in no file, as in a shell.
    """
    function: Any = inspect.unwrap(application)
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    if not (inspect.isroutine(function) or inspect.isclass(function)):
        function = type(function)  # an object that is called
    try:
        content = Path(inspect.getsourcefile(function) or "").read_bytes()
    except (TypeError, OSError) as error:
        raise ConfigurationError(
            f"{application!r} is in no file whose digest could be its version: pass "
            "version=…"
        ) from error
    return hashlib.sha256(content).hexdigest()[:_VERSION_LENGTH]
