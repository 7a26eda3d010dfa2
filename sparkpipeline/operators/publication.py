"""
How a copy of operator state comes to the nodes: by the steps of any batch (O5).

What is published is never read by the operator: its state is in its manifests, or in
Spark's offset log, and from there alone it is restored.  The copy is owned by a query
of its own, made of the id of Spark's, so that a sink may write the same job under that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, final

from attrs import field, frozen

from haservices import HAConfig
from nameservice import ConfigurationError, check_component_id
from queryablestate.connect.credentials import Credentials, as_credentials
from queryablestate.schema.operator_states import OPERATOR_STATE_SCHEMA, published_name
from queryablestate.writer.connections import writer_connections
from queryablestate.writer.operator_states import published_rows, published_states
from queryablestate.writer.stager import StageLimits, Stager
from queryablestate.writer.writer import StateWriter
from rescaling.key_groups import MAX_PARALLELISM_MAX
from sparkpipeline.state.options import (
    COMMIT_TIMEOUT_SECONDS_DEFAULT,
    MAX_PARALLELISM_DEFAULT,
)


if TYPE_CHECKING:
    from collections.abc import Sequence

    from queryablestate.client.calls import ProxyConnection
    from sparkpipeline.run_births import DrawnEpoch


__all__ = [
    "OperatorStatePublication",
    "PublishedBatch",
    "PublishingRun",
    "be_born",
    "check_publishable",
    "draw_epoch",
    "publish_batch",
]

WAIT_SECONDS_DEFAULT: Final = 5.0

_SECONDS_MAX: Final = 3_600.0
_FIND_TIMEOUT_SECONDS: Final = 2.0


def _to_config(config: HAConfig | str) -> HAConfig:
    return HAConfig(url=config) if isinstance(config, str) else config


@final
@frozen(kw_only=True)
class OperatorStatePublication:
    """
    Where the state of an operator can be asked for, and what that may cost its query.

    The names are those of `publish_state`, and mean the same.

    Attributes:
        config: The name service by which the proxy is found; its URL will do.
        job_id: The job that the copy belongs to.
        max_parallelism: The number of key groups, the same for all states of a job and
            for life.
        on_new_query: Whether a copy that belongs to another query is an error
            (``"refuse"``) or begins anew (``"replace"``).
        wait_seconds: How long a batch waits, behind its sink, until its state can be
            asked for.  The query then goes on without, and waits no more until a batch
            has been published again.  0 never waits.
        is_required: Whether a batch fails instead, after *commit_timeout_seconds*, and
            is run again when the query is restarted; *wait_seconds* is not used.
        commit_timeout_seconds: How long one try may take.
        credentials: A token or CURVE keys, if the proxy wants to know who writes.

    Raises:
        ConfigurationError: If something is out of range; says what to change.
    """

    config: HAConfig = field(converter=_to_config)
    job_id: str
    max_parallelism: int = MAX_PARALLELISM_DEFAULT
    on_new_query: Literal["refuse", "replace"] = "refuse"
    wait_seconds: float = WAIT_SECONDS_DEFAULT
    is_required: bool = False
    commit_timeout_seconds: float = COMMIT_TIMEOUT_SECONDS_DEFAULT
    credentials: Credentials = field(default=None, converter=as_credentials)

    def __attrs_post_init__(self) -> None:
        check_component_id(self.job_id, what="job_id")
        if not 1 <= self.max_parallelism <= MAX_PARALLELISM_MAX:
            raise ConfigurationError(
                f"max_parallelism must be 1 to {MAX_PARALLELISM_MAX}, not "
                f"{self.max_parallelism}"
            )
        if self.on_new_query not in {"refuse", "replace"}:
            raise ConfigurationError(
                f'on_new_query must be "refuse" or "replace", not '
                f"{self.on_new_query!r}: a copy is always of all that there is"
            )
        if not 0 <= self.wait_seconds <= _SECONDS_MAX:
            raise ConfigurationError(
                f"wait_seconds must be 0 to {_SECONDS_MAX:g}, not {self.wait_seconds!r}"
            )
        if not 0 < self.commit_timeout_seconds <= _SECONDS_MAX:
            raise ConfigurationError(
                "commit_timeout_seconds must be above 0 and at most "
                f"{_SECONDS_MAX:g}, not {self.commit_timeout_seconds!r}"
            )


@final
@frozen(kw_only=True)
class PublishingRun:
    """
    A run of a query that publishes operator state.

    Attributes:
        query_id: The query that owns the copy.
        run_id: The run of it.
        drawn: The epoch that was drawn when it was started, if one was.
        start_number: Greater than that of each run which this process started before.
    """

    query_id: str
    run_id: str
    drawn: DrawnEpoch | None = field(default=None, eq=False, repr=False)
    start_number: int = field(default=0, eq=False)


@final
@frozen(kw_only=True)
class PublishedBatch:
    """
    The state of an operator after a batch.

    Attributes:
        run: Whose batch it is.
        batch_id: The batch.
        snapshots: Of all subtasks, by operator index, as `encode_snapshot` made them.
    """

    run: PublishingRun
    batch_id: int
    snapshots: Sequence[bytes]


def _shared_proxy(publication: OperatorStatePublication) -> ProxyConnection:
    return writer_connections().proxy(publication.config, publication.credentials)


def be_born(
    publication: OperatorStatePublication,
    run: PublishingRun,
    proxy: ProxyConnection | None = None,
) -> None:
    """
    Draw the epoch that *run* is born with, if it has none (rule W1).

    A run has its first batch to publish when that is computed.  If it were born then, a
    driver that was asleep meanwhile would fence the one that has replaced it.

    Args:
        publication: Where it publishes.
        run: The run.
        proxy: The way to the proxy; by default the one that the process keeps.

    Raises:
        StaleWriterError: If a newer run of the query has begun in this process.
        NameServiceError: If the proxy could not be asked.
    """
    writer = StateWriter(proxy or _shared_proxy(publication))
    writer.be_born(
        publication.job_id,
        query_id=run.query_id,
        run_id=run.run_id,
        born_epoch=_drawn_epoch(publication, run, writer),
        timeout_seconds=_birth_seconds(publication),
    )


def draw_epoch(publication: OperatorStatePublication) -> int:
    """
    Draw an epoch for a run that is being started.

    Raises:
        NameServiceError: If the proxy could not be asked.
    """
    return StateWriter(_shared_proxy(publication)).draw_epoch(
        publication.job_id, timeout_seconds=_birth_seconds(publication)
    )


def _birth_seconds(publication: OperatorStatePublication) -> float:
    # A batch may come meanwhile, which is not to wait for long, and tries itself.
    return min(publication.commit_timeout_seconds / 2, _FIND_TIMEOUT_SECONDS)


def _drawn_epoch(
    publication: OperatorStatePublication, run: PublishingRun, writer: StateWriter
) -> int | None:
    """Return what was drawn when *run* was started, as soon as it is."""
    # Before it waits: a run that is started later is the newer one.
    writer.begins(publication.job_id, query_id=run.query_id, run_id=run.run_id)
    return None if run.drawn is None else run.drawn.result()


def check_publishable(snapshots: Sequence[bytes]) -> None:
    """
    See that the states in *snapshots* have names that can be published.

    Raises:
        ConfigurationError: If one has none; says why.
    """
    for state in published_states(snapshots):
        published_name(state.name)


def publish_batch(
    publication: OperatorStatePublication,
    batch: PublishedBatch,
    proxy: ProxyConnection | None = None,
) -> None:
    """
    Put the states of *batch* in place of those before, and wait until that is applied.

    A batch that is published already is not published again (rule W4); one that has no
    states changes nothing.

    Args:
        publication: Where to.
        batch: What there is.
        proxy: The way to the proxy; by default the one that the process keeps.

    Raises:
        ConfigurationError: If a state has a name that no published one can have.
        StaleWriterError: If a newer run of the query writes.
        StateOwnedError: If another query owns a copy, and *publication* refuses that.
        SchemaMismatchError: If the job has another number of key groups.
        CheckpointRewoundError: If a later batch is published already.
        NameServiceError: If the proxy or a node could not be reached, or refused.
    """
    states = published_states(batch.snapshots)
    if not states:
        return
    timeout_seconds = publication.commit_timeout_seconds
    credentials = publication.credentials
    writer = StateWriter(proxy or _shared_proxy(publication))
    run = writer.begin(
        publication.job_id,
        {published_name(state.name): OPERATOR_STATE_SCHEMA for state in states},
        query_id=batch.run.query_id,
        run_id=batch.run.run_id,
        max_parallelism=publication.max_parallelism,
        on_new_query=publication.on_new_query,
        born_epoch=_drawn_epoch(publication, batch.run, writer),
        timeout_seconds=timeout_seconds,
    )
    messages = []
    if not run.is_decided(batch.batch_id):
        # Snapshots are on the driver already: no task has to stage them.
        with Stager(
            run,
            batch.batch_id,
            config=publication.config,
            credentials=credentials,
            find_node=lambda node_id: writer.find_node(
                run.plan, node_id, timeout_seconds=_FIND_TIMEOUT_SECONDS
            ),
            renew_grant=lambda: writer.renew_grant(
                run, timeout_seconds=_FIND_TIMEOUT_SECONDS
            ),
            limits=StageLimits(timeout_seconds=timeout_seconds),
        ) as stager:
            for state, number in zip(states, run.origin.state_numbers, strict=True):
                rows = published_rows(
                    state,
                    writer_epoch=run.origin.writer_epoch,
                    batch_id=batch.batch_id,
                    max_parallelism=publication.max_parallelism,
                )
                stager.add(number, rows, is_list=False)
            messages.append(stager.finish())
    writer.commit(
        run.origin,
        batch.batch_id,
        messages,
        is_complete=True,
        is_digested=False,  # rows name the writer epoch of the run that wrote them
        timeout_seconds=timeout_seconds,
    )
