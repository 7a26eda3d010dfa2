"""`run_with_standby`: several drivers of one Spark application, of which one leads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, Literal

from pyspark.sql import SparkSession

from haservices import Backend, HAConfig, open_ha_services
from haservices.config import STANDBY_JOB
from nameservice import ConfigurationError
from nameservice.fields import check_address
from sparkpipeline.spark_session import check_session
from sparkpipeline.standby.checks import check_checkpoint, check_settings
from sparkpipeline.standby.driver import Driver
from sparkpipeline.standby.record import code_version
from sparkpipeline.standby.settings import DriverSettings


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sparkpipeline.standby.driver import Application


__all__ = ["run_with_standby"]

WARM_UP_SECONDS: Final = 60.0
STOP_SECONDS: Final = 10.0
HAND_OVER_SECONDS: Final = 5.0
_SECONDS_MAX: Final = 3_600.0


def run_with_standby(
    application: Application,
    config: HAConfig | str | None = None,
    *,
    job_id: str | None = None,
    address: str | None = None,
    spark: SparkSession | None = None,
    checkpoint_locations: Sequence[str] = (),
    warm_up: Callable[[SparkSession], object] | None = None,
    warm_up_seconds: float = WARM_UP_SECONDS,
    stop_seconds: float = STOP_SECONDS,
    hand_over_seconds: float = HAND_OVER_SECONDS,
    version: str | None = None,
    on_other_version: Literal["refuse", "admit"] = "refuse",
) -> None:
    """
    Run a streaming application of which several drivers run, and one leads.

    Call it in each driver.  It warms the driver by a throw-away query, contends for
    *job_id*, and calls *application* when it leads.  The queries that *application*
    starts are stopped when the leadership is over, and the driver contends again, as
    warm as it is.  Blocks until the queries have ended by themselves, or until SIGTERM
    or SIGINT (called on the main thread), after which the batch under way is finished
    and the next driver leads.

    A driver whose queries do not stop in time ends its JVM and itself, with exit code
    75: start it again.

    Args:
        application: A function of (session, leadership) that starts queries and
            returns it or them; called once for each leadership, on a thread of its
            own.  Functions for ``foreachBatch`` go through ``leadership.guard``; what
            `publish_state`, `publish_states` and `run_operator` return is guarded by
            itself.
        config: The name service; its URL will do.  Not embedded: drivers are processes.
            By default what `HAConfig.load` finds, such as ``LODESTAR_URL``.
        job_id: What the drivers contend for; one for each application.  By default what
            ``lodestar standby`` was given.
        address: Where this driver is found while it leads; by default that of the
            Spark UI.
        spark: The session; by default what ``SparkSession.builder.getOrCreate()``
            returns, with what spark-submit was given.
        checkpoint_locations: Where the queries keep their checkpoints.  Checked at
            once if they are named here, else when the queries are started.
        warm_up: What else to do while there is time; a function of the session.
        warm_up_seconds: How long warming up may take, above 0 and at most 3,600.  A
            driver that is not warm by then contends all the same.
        stop_seconds: How long the queries may take to stop, likewise.  Longer than a
            batch, or a hand-over ends the driver.
        hand_over_seconds: How long to wait for a driver that has lost its leadership
            and still finishes a batch, likewise.
        version: Of the application; by default a digest of the file that it is in.
        on_other_version: Whether a driver may stand by for a leader of another version
            of the application (``"admit"``) or is refused.

    Raises:
        ConfigurationError: If it could not work like that; says what to set.  Raised
            before anything is run, but for what the application shows.
        UnreachableError: If the name service did not answer in time.
        AuthenticationError: If it refused us.
        Exception: What *application* raised or a query has failed with.  The next
            driver leads by then.
    """
    if config is None:
        config = HAConfig.load()
    elif isinstance(config, str):
        config = HAConfig(url=config)
    if job_id is None:
        job_id = os.environ.get(STANDBY_JOB)
    if job_id is None:
        raise ConfigurationError(
            "there is no job id: pass job_id=…, or start the driver with "
            "lodestar standby JOB -- …"
        )
    if config.backend is Backend.EMBEDDED:
        raise ConfigurationError(
            f"{config.url!r} does not leave this process, and a standby is another: "
            "use a LeaderServer or ZooKeeper"
        )
    if not callable(application):
        raise ConfigurationError(
            f"application is a function of (spark, leadership), not {application!r}"
        )
    if on_other_version not in {"refuse", "admit"}:
        raise ConfigurationError(
            f'on_other_version must be "refuse" or "admit", not {on_other_version!r}'
        )
    for name, seconds in (
        ("warm_up_seconds", warm_up_seconds),
        ("stop_seconds", stop_seconds),
        ("hand_over_seconds", hand_over_seconds),
    ):
        if not 0 < seconds <= _SECONDS_MAX:
            raise ConfigurationError(
                f"{name} must be above 0 and at most {_SECONDS_MAX:g}, not {seconds!r}"
            )
    if spark is None:
        spark = SparkSession.builder.getOrCreate()
    check_session(spark, "run_with_standby")
    check_settings(spark)
    checked = [
        check_checkpoint(spark, location)
        for location in _locations(checkpoint_locations)
    ]
    settings = DriverSettings(
        job_id=job_id,
        address=_address(spark, address),
        application_name=spark.sparkContext.appName or "",
        version=code_version(application) if version is None else version,
        is_other_version_admitted=on_other_version == "admit",
        warm_up_seconds=warm_up_seconds,
        stop_seconds=stop_seconds,
        hand_over_seconds=hand_over_seconds,
        checked_locations=checked,
    )
    with open_ha_services(config) as ha:
        Driver(spark, ha, application, settings, warm_up=warm_up).run()


def _locations(given: Any) -> Sequence[str]:
    return (given,) if isinstance(given, str) else tuple(given)


def _address(spark: SparkSession, given: str | None) -> str:
    address = spark.sparkContext.uiWebUrl if given is None else given
    if address is None:
        raise ConfigurationError(
            "there is no Spark UI whose address could be published: pass address=…"
        )
    return check_address(address)
