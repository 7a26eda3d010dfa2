"""Which query may write a state that another one owns; pure (rule W5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nameservice import ConfigurationError
from queryablestate.control.job.batch_order import remembered_queries
from queryablestate.errors import StateOwnedError
from queryablestate.wire.records import QueryProgress


if TYPE_CHECKING:
    from queryablestate.wire.records import RunRecord, StateProgress, StateRecord


__all__ = [
    "CONTINUE",
    "REFUSE",
    "REPLACE",
    "check_may_go_on",
    "check_on_new_query",
    "check_takeover",
]

REFUSE: Final = "refuse"
REPLACE: Final = "replace"
CONTINUE: Final = "continue"
_ON_NEW_QUERY: Final = (REFUSE, REPLACE, CONTINUE)


def check_on_new_query(text: str) -> None:
    """
    Return if *text* says what becomes of a state that another query owns.

    Raises:
        ConfigurationError: If not.
    """
    if text not in _ON_NEW_QUERY:
        raise ConfigurationError(
            f"on_new_query must be one of {', '.join(_ON_NEW_QUERY)}, not {text!r}"
        )


def check_takeover(
    job_id: str,
    owned: StateProgress,
    state: StateRecord,
    run: RunRecord,
    on_new_query: str,
) -> None:
    """
    Return if *run* may take the state from the query that owns it.

    Raises:
        StateOwnedError: If not.
    """
    if owned.batch_id is None and owned.owner_epoch <= run.writer_epoch:
        return  # no query has written it yet: the last to come may
    if on_new_query == REFUSE or run.writer_epoch <= owned.owner_epoch:
        raise StateOwnedError(job_id, state.state_name, owned.query_id, run.query_id)


def check_may_go_on(owned: StateProgress, query_id: str) -> None:
    """Return if one more query may go on with a state, before it stages anything."""
    one = QueryProgress(query_id=query_id, batch_id=0, writer_epoch=0, sequence=0)
    remembered_queries((*owned.queries, one), owned.replaced_sequence)
