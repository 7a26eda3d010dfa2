"""
Globs over states, ``JOB/STATE``: access, rate limits and cache go by them; pure.

``*``, ``?`` and ``[…]`` mean what they mean in a shell, and case counts.  The halves
are matched apart, as `zmqtransport.access` does: no wildcard reaches across the ``/``.
"""

from __future__ import annotations

import re
from fnmatch import translate
from typing import Final, final

import attrs

from nameservice import ConfigurationError


__all__ = ["GLOB_LENGTH_MAX", "StateGlob", "compile_glob", "to_state_glob"]

GLOB_LENGTH_MAX: Final = 600
"""Characters: two names of 255, and some brackets."""


def compile_glob(glob: str) -> re.Pattern[str]:
    """Return the pattern whose ``match`` tells whether all of a text is meant."""
    return re.compile(translate(glob))


def _check_text(text: str) -> str:
    """Return *text* if it is two globs with one ``/`` between them."""
    given: object = text
    if (
        isinstance(given, str)
        and len(given) <= GLOB_LENGTH_MAX
        and given.isprintable()
        and given.count("/") == 1
        and "/" not in {given[0], given[-1]}
    ):
        return given
    raise ConfigurationError(
        f"glob {given!r} must be JOB/STATE, where each may hold * ? and […], "
        'e.g. "flights/*"'
    )


@final
@attrs.frozen
class StateGlob:
    """
    One glob, taken apart; ``str()`` gives the text back.

    Attributes:
        text: ``JOB/STATE``.

    Raises:
        ConfigurationError: If *text* is not two globs with one ``/`` between them.
    """

    text: str = attrs.field(converter=_check_text)
    _job: re.Pattern[str] = attrs.field(init=False, eq=False, repr=False)
    _state: re.Pattern[str] = attrs.field(init=False, eq=False, repr=False)

    @_job.default
    def _compile_job(self) -> re.Pattern[str]:
        return compile_glob(self.text.partition("/")[0])

    @_state.default
    def _compile_state(self) -> re.Pattern[str]:
        return compile_glob(self.text.partition("/")[2])

    def __str__(self) -> str:
        return self.text

    def matches(self, job_id: str, state_name: str) -> bool:
        """Return whether that state is meant; names with a ``/`` never are."""
        return (
            self._job.match(job_id) is not None
            and self._state.match(state_name) is not None
            and "/" not in job_id
            and "/" not in state_name
        )

    def matches_job(self, job_id: str) -> bool:
        """Return whether some state of that job could be meant."""
        return self._job.match(job_id) is not None and "/" not in job_id

    def matches_all_of(self, job_id: str) -> bool:
        """Return whether every state of that job is meant, whatever its name."""
        return self.matches_job(job_id) and not self.text.partition("/")[2].strip("*")


def to_state_glob(value: StateGlob | str) -> StateGlob:
    """Return *value*, or the glob of that text."""
    return value if isinstance(value, StateGlob) else StateGlob(value)
