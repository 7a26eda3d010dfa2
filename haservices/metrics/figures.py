"""
Which figure of a server is which metric: one table; pure.

Figures are what ``observe`` of a server, a proxy, a node and a gateway returns, by
name.  Each one is a metric, a part of one (`Family`, `INFO`), or left out with the
reason.  A metric that ends with ``_total`` is a counter: it only grows while the
process runs.  All others are gauges.  A test holds the table to what the servers have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

from attrs import frozen


__all__ = [
    "FAMILIES",
    "FIGURES",
    "INFO",
    "JOBS",
    "LATENCIES",
    "LEFT_OUT",
    "OTHERS",
    "STATES",
    "STOPPED",
    "Family",
    "Figure",
    "figure_of",
    "metric_name",
]

PREFIX: Final = "lodestar_"


@final
@frozen
class Figure:
    """
    What a figure means as a metric.

    Attributes:
        help: For a person; units are in the name.
        name: Of the metric, behind role and prefix; "" is that of the figure.
        scale: What the figure is multiplied by: metrics are in seconds and bytes.
    """

    help: str
    name: str = ""
    scale: float = 1.0


@final
@frozen
class Family:
    """
    Figures whose names differ in the middle: one metric with a label.

    Attributes:
        prefix: What their names begin with; they end with ``_total``.
        label: The name of the label, whose value stands between.
        name: Of the metric.
        help: For a person.
        known: Values that are told as 0 before they happen: alerts look for growth, and
            what appears with 1 has not grown.
    """

    prefix: str
    label: str
    name: str
    help: str
    known: tuple[str, ...] = ()


_PORT: Final = {
    "connections": Figure("Connections that are open."),
    "connections_refused_total": Figure("Connections refused: too many are open."),
    "connections_unauthorized_total": Figure(
        "Connections refused: their key is not on the allow-list."
    ),
    "connections_ended_total": Figure(
        "Connections ended: more came over them than could be taken."
    ),
    "received_bytes_total": Figure("Messages that came in."),
    "sent_bytes_total": Figure("Messages that went out."),
    "failures_total": Figure(
        "Exceptions in the server's loop that it survived: each is a defect."
    ),
}

FIGURES: Final[Mapping[str, Mapping[str, Figure]]] = {
    "server": {
        **_PORT,
        "sent_bytes_total": Figure("Messages that went out, without publications."),
        "uptime_seconds": Figure("Since the server was started."),
        "is_undecided": Figure(
            "1 while nothing is granted after a start, until former leases have ended.",
            name="undecided",
        ),
        "is_durable": Figure(
            "1 if epochs and leader stores outlive a restart.", name="durable"
        ),
        "sessions": Figure("Sessions of clients."),
        "components": Figure("Jobs that are remembered."),
        "contenders": Figure("Contenders of all jobs."),
        "leaders": Figure("Jobs that have a leader."),
        "leaderless": Figure("Jobs that have contenders, and no leader."),
        "subscriptions": Figure("Sessions that hear of the leader of a job."),
        "state_bytes": Figure("Memory that is reckoned for sessions and jobs."),
        "store_watches": Figure("Leader stores that are watched."),
        "storage_waiting": Figure("Writes that wait for the disk."),
        "storage_is_short": Figure(
            "1 while the disk is full, or nearly so.", name="storage_short"
        ),
        "grants_total": Figure("Leaderships granted."),
        "commits_total": Figure("Commits to leader stores."),
        "stalls_total": Figure("Times that the server was not running for a while."),
        "stalled_seconds_total": Figure("How long it was not running in all."),
        "requests_total": Figure("Requests that were taken."),
        "requests_failed_total": Figure("Requests that were answered by an error."),
        "requests_foreign_key_total": Figure(
            "Requests for a session of another client's key."
        ),
        "requests_repeated_total": Figure("Requests that came again."),
        "requests_session_unknown_total": Figure(
            "Requests of sessions that had ended, or never were."
        ),
        "sessions_refused_total": Figure("Sessions that were not opened."),
        "sessions_ended_by_rights_total": Figure(
            "Sessions ended because their rights were withdrawn."
        ),
        "epochs_refused_total": Figure("Grants put off: no epoch could be had."),
        "epochs_unrecorded_total": Figure("Epochs that could not be written."),
        "storage_writes_total": Figure("Changes written to the disk."),
        "storage_batches_total": Figure("Transactions that they were written in."),
        "storage_failures_total": Figure("Transactions that failed."),
        "batches_dropped_total": Figure("Requests dropped: too many waited."),
        "broadcasts_total": Figure("Changes of leaders that were published."),
        "broadcasts_dropped_total": Figure(
            "Changes of leaders not published to somebody: too much waited."
        ),
        "broadcasts_unencodable_total": Figure(
            "Changes of leaders that could not be encoded: each is a defect."
        ),
        "replies_full_total": Figure("Replies that waited: a client reads too slowly."),
        "replies_unencodable_total": Figure(
            "Replies that could not be encoded: each is a defect."
        ),
        "replies_unroutable_total": Figure("Replies to clients that were gone."),
        "replies_queued_bytes": Figure("Replies that wait to be read."),
        "replies_waiting_peers": Figure("Clients that have replies to read."),
        "peers_ended_total": Figure("Clients ended because they read too slowly."),
        "connections_silent": Figure("Connections over which nothing has come yet."),
        "subscribers": Figure("Connections that changes are published to."),
        "subscribers_refused_total": Figure("Subscribers refused: too many."),
        "subscribers_ended_total": Figure(
            "Subscribers ended: they asked for too much."
        ),
        "topics": Figure("Jobs that somebody subscribes to."),
    },
    "proxy": {
        **_PORT,
        "leads": Figure("1 if this proxy leads, and answers."),
        "nodes": Figure("Nodes that are known."),
        "nodes_present": Figure("Nodes that are registered."),
        "nodes_refused_total": Figure("Registrations of nodes that were refused."),
        "connections_not_joined_total": Figure(
            "Second connections of nodes that were refused: the node is not registered."
        ),
        "jobs": Figure("Jobs that have state."),
        "states": Figure("States that can be asked."),
        "sessions": Figure("Sessions of clients and writers."),
        "sessions_unknown_total": Figure("Requests of sessions that had ended."),
        "hellos_refused_total": Figure("Callers refused: neither token nor key fits."),
        "batches_decided_total": Figure("Batches of writers that were decided."),
        "changes_waiting": Figure("Changes that wait for the leader store."),
        "questions_pending": Figure("Questions that nodes have not yet answered."),
        "questions_parked": Figure("Questions that wait for a node to come back."),
        "hedged_total": Figure(
            "Reads that a second copy was asked for: the first was late."
        ),
        "hedges_won_total": Figure("Hedged reads that the second copy has answered."),
        "reads_moved_total": Figure(
            "Reads asked of others: the node was silent, away, or refused."
        ),
        "nodes_unresponsive": Figure("Nodes that do not answer, and are asked second."),
        "direct_tickets_total": Figure("Tickets given, for reads without the proxy."),
        "cache_hits_total": Figure("Questions answered from the cache."),
        "cache_misses_total": Figure("Questions that the cache had no answer to."),
        "cache_size_bytes": Figure("Answers in the cache."),
        "links": Figure("Connections that have spoken."),
        "in_flight_bytes": Figure("Answers that wait to be read by clients."),
        "peers_ended_total": Figure("Connections ended: their peers read nothing."),
    },
    "node": {
        **_PORT,
        "is_registered": Figure(
            "1 if the node is registered with a proxy that leads.", name="registered"
        ),
        "leader_epoch": Figure("The epoch of that proxy."),
        "lease_remaining_ms": Figure(
            "How long the node may answer without hearing of the proxy.",
            name="lease_remaining_seconds",
            scale=0.001,
        ),
        "heartbeats_total": Figure("Heartbeats sent to the proxy."),
        "jobs": Figure("Jobs that the node has a part in."),
        "jobs_failed": Figure("Jobs that are stopped on this node: its log says why."),
        "questions_waiting": Figure("Questions that wait for a batch."),
        "questions_answered_total": Figure("Questions answered."),
        "questions_refused_total": Figure("Questions refused."),
        "direct_answered_total": Figure("Questions of clients answered directly."),
        "direct_refused_total": Figure(
            "Questions and tickets of clients refused: they ask the proxy."
        ),
        "direct_tickets": Figure("Tickets that clients have shown, and may use."),
        "direct_pages_waiting": Figure("Pages and counts that clients wait for."),
        "direct_unsent_bytes": Figure("Answers that clients have yet to read."),
        "peers_ended_total": Figure("Connections ended: their peers read nothing."),
        "readers": Figure("Reader processes that the node is to have."),
        "readers_running": Figure("Those that run, and answer."),
        "reader_restarts_total": Figure("Reader processes that have ended."),
        "reader_page_writes_total": Figure(
            "How often reader processes were told what they may answer."
        ),
        "reader_jobs_left_out": Figure(
            "Jobs that reader processes do not answer for: there are too many."
        ),
        "chunks_waiting": Figure("Chunks of rows that wait for the disk."),
        "chunks_waiting_bytes": Figure("Their size."),
        "chunks_staged_total": Figure("Chunks of rows staged."),
        "chunks_refused_total": Figure("Chunks of rows refused."),
        "store_used_bytes": Figure("Pages of the store in use; staged rows are in it."),
        "store_size_bytes_max": Figure(
            "How much the store may grow to.", name="store_limit_bytes"
        ),
        "staged_bytes": Figure("Rows that were brought, and are not decided."),
        "proxy_received_bytes_total": Figure("Messages that came from the proxy."),
        "proxy_sent_bytes_total": Figure("Messages that went to the proxy."),
        "key_groups_copied_total": Figure("Copies of key groups made: moves, repairs."),
        "key_groups_held": Figure("Copies of key groups that are whole."),
        "key_groups_copying": Figure("Copies of key groups that are being made."),
        # These two shrink when a job goes: no counters, so the names do not end so.
        "rows_copied_total": Figure(
            "Rows copied from other nodes, for the jobs that are here now.",
            name="rows_copied",
        ),
        "rows_copied_bytes_total": Figure("Their size.", name="rows_copied_bytes"),
        "copies_served": Figure("Nodes that copy from this one now."),
        "copy_requests_total": Figure("Pages that other nodes asked for."),
        "reads_waiting": Figure("Long reads that wait for the reading thread."),
        "reads_held_bytes": Figure("Answers of long reads that wait to be sent."),
    },
    "sql": {
        "connections": Figure("Connections that are open."),
        "connections_refused_total": Figure("Connections refused: too many are open."),
        "logins_refused_total": Figure(
            "Sessions refused: the proxy knows no such token."
        ),
        "queries_running": Figure("Queries that processes answer now."),
        "queries_waiting": Figure("Queries that wait for their turn."),
        "points_total": Figure("Statements answered by looking keys up."),
        "queries_total": Figure("Statements handed to these processes."),
        "statements_failed_total": Figure("Statements that were answered by an error."),
        "cancels_total": Figure("Statements that their tool has cancelled."),
        "workers_restarted_total": Figure(
            "Processes that ended, and were started again."
        ),
    },
    "standby": {
        "warm": Figure("1 if the driver is warm and contends, or leads."),
        "leading": Figure("1 if the driver leads."),
        "epoch": Figure("Of its leadership; 0 while it does not lead."),
        "drivers_started_total": Figure("How often a driver was started."),
    },
    "gateway": {
        "uptime_seconds": Figure("Since the gateway was started."),
        "connections": Figure("Connections that are open."),
        "requests": Figure("Requests that are answered now, without watches."),
        "callers": Figure("Callers that are connected to the proxy."),
        "callers_refused_total": Figure("Requests whose token the proxy refused."),
        "watches": Figure("Watches of keys and leaders."),
        "watched_keys": Figure("Keys that they watch, each once for each caller."),
        "watched_components": Figure("Components whose leaders they watch."),
        "received_bytes_total": Figure("Bodies of requests."),
        "sent_bytes_total": Figure("Bodies of answers."),
        "failures_total": Figure(
            "Requests that met a mistake of the gateway: each is a defect."
        ),
    },
}

FAMILIES: Final[Mapping[str, tuple[Family, ...]]] = {
    "server": (
        Family(
            "frames_", "reason", "frames_dropped", "Messages that were no requests."
        ),
        Family(
            "errors_", "reason", "errors", "Requests answered by an error, by reason."
        ),
    ),
    "proxy": (
        Family("frames_", "reason", "frames_dropped", "Messages that made no sense."),
        Family(
            "messages_",
            "outcome",
            "messages_not_sent",
            "Messages not sent: the other side is gone, or reads too slowly.",
        ),
        Family(
            "errors_",
            "code",
            "errors",
            "Questions and requests refused, by code.",
            known=("access_denied", "rate_limited", "state_unavailable", "storage"),
        ),
    ),
    "node": (
        Family("frames_", "reason", "frames_dropped", "Messages that made no sense."),
        Family(
            "proxy_frames_",
            "reason",
            "proxy_frames_dropped",
            "Messages from and to the proxy that were dropped.",
        ),
        Family(
            "errors_",
            "code",
            "errors",
            "Questions refused, by code.",
            known=("storage",),
        ),
        Family(
            "chunk_errors_",
            "code",
            "chunk_errors",
            "Chunks of rows refused, by code.",
            known=("storage",),
        ),
    ),
    "sql": (),
    "standby": (),
    "gateway": (
        Family("answers_", "status", "answers", "Answers, by their status."),
        Family("problems_", "problem", "problems", "Problems told, by their names."),
        Family(
            "ended_",
            "reason",
            "connections_ended",
            "Connections ended by the gateway: their clients were late or too many.",
        ),
    ),
}

INFO: Final[Mapping[str, tuple[str, ...]]] = {
    "server": ("version",),
    "proxy": ("version",),
    "node": ("version", "node_id", "address"),
    "gateway": ("version", "url"),
    "sql": (),
    "standby": ("job_id",),
}
"""
Figures that are text: labels of ``lodestar_ROLE_info``, whose value is 1.

None is called ``job`` or ``instance``: Prometheus sets these itself, and renames what
was served under such a name.
"""

LEFT_OUT: Final[Mapping[str, Mapping[str, str]]] = {
    "server": {"incarnation": "names the data directory: a text that no graph needs"},
    "proxy": {},
    "node": {},
    "gateway": {},
    "sql": {},
    "standby": {},
}
"""Figures that are no metric, and why."""

STATES: Final[Mapping[str, str]] = {
    "state_generation": "The present ownership of the state.",
    "state_last_batch_id": "The last batch decided in it.",
    "state_age_seconds": "How long ago that was: how old answers are, at least.",
}
"""By job and state, of the proxy that leads."""

JOBS: Final[Mapping[str, str]] = {
    "job_key_groups": "Key groups of the job.",
    "job_key_groups_unavailable": "Key groups without a copy that could be asked.",
    "job_key_groups_short": "Key groups with fewer copies than the job is to have.",
    "job_copies": "Copies of key groups that could be asked.",
    "job_copies_left": "Copies that are still to be made: moves, and repairs.",
    "job_nodes_stopped": "Nodes that cannot go on with the job.",
    "job_entries_behind": "Decided entries that the slowest node has yet to apply.",
}
"""By job, of the proxy that leads; without the prefix they are of a `JobStanding`."""

STOPPED: Final = "job_stopped"

LATENCIES: Final = "answer_duration_seconds"

OTHERS: Final[Mapping[str, Mapping[str, str]]] = {
    "server": {},
    "proxy": {
        **STATES,
        **JOBS,
        LATENCIES: "From a question to its answer at the proxy, by kind; a histogram.",
        "states_left_out": "States without metrics of their own: there are too many.",
    },
    "node": {
        LATENCIES: "From a question to its answer on the node, by kind; a histogram.",
        STOPPED: "1 for each job that is stopped on the node, with the reason.",
    },
    "sql": {},
    "standby": {},
    "gateway": {
        LATENCIES: "From a request to the end of its answer, by kind; a histogram.",
    },
}
"""Metrics that are made of no figure, and what they mean."""


def metric_name(role: str, name: str) -> str:
    """Return the whole name of a metric."""
    return f"{PREFIX}{role}_{name}"


def figure_of(role: str, name: str) -> tuple[str, Figure, Mapping[str, str]] | None:
    """
    Return which metric a figure is.

    Args:
        role: Whose figure it is.
        name: Of the figure.

    Returns:
        The name of the metric, what it means, and its labels; None if it is none.
    """
    figure = FIGURES[role].get(name)
    if figure is not None:
        return metric_name(role, figure.name or name), figure, {}
    for family in FAMILIES[role]:
        if name.startswith(family.prefix) and name.endswith("_total"):
            value = name.removeprefix(family.prefix).removesuffix("_total")
            whole = metric_name(role, f"{family.name}_total")
            return whole, Figure(family.help), {family.label: value}
    return None
