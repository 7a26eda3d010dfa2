from __future__ import annotations

import pickle
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nameservice import ConfigurationError
from queryablestate.proxy.state_glob import GLOB_LENGTH_MAX, StateGlob, to_state_glob


half = st.text(alphabet="ab*?[]!-.", min_size=1, max_size=6)
name = st.text(alphabet="ab*[]!-./\n", max_size=5)


@pytest.mark.proves("C1")
class TestMatching:
    @pytest.mark.parametrize(
        ("glob", "job_id", "state_name", "is_match"),
        [
            ("flights/*", "flights", "aircraft", True),
            ("flights/*", "flights-2", "aircraft", False),
            ("*/aircraft", "trains", "aircraft", True),
            ("*/aircraft", "trains", "aircraft-2", False),
            ("*/*", "trains", "log", True),
            ("flights/a?c", "flights", "abc", True),
            ("flights/a[!b]c", "flights", "abc", False),
            ("Flights/*", "flights", "aircraft", False),
            ("flights*/x", "flights/y", "x", False),
            ("*/x", "flights", "y/x", False),
            ("*/*", "flights", "y/x", False),
            ("*/*", "flights/y", "x", False),
            ("f*/*", "f", "", True),
        ],
    )
    def test_each_half_is_matched_on_its_own(
        self, glob: str, job_id: str, state_name: str, is_match: bool
    ) -> None:
        """C1: wildcards mean what they mean in a shell, and do not cross the slash."""
        assert StateGlob(glob).matches(job_id, state_name) is is_match

    @given(half, half, name, name)
    def test_it_is_what_fnmatch_says_of_the_halves(
        self, job: str, state: str, job_id: str, state_name: str
    ) -> None:
        """C1: no glob means more than the standard library's, half by half."""
        expected = (
            fnmatchcase(job_id, job)
            and fnmatchcase(state_name, state)
            and "/" not in job_id + state_name
        )
        glob = StateGlob(f"{job}/{state}")
        assert glob.matches(job_id, state_name) is expected
        assert glob.matches_job(job_id) is (
            fnmatchcase(job_id, job) and "/" not in job_id
        )

    @given(half, half, name, name)
    def test_all_of_a_job_includes_each_of_its_states(
        self, job: str, state: str, job_id: str, state_name: str
    ) -> None:
        """C1: a right to all states of a job is one to each, whatever its name."""
        glob = StateGlob(f"{job}/{state}")
        if glob.matches_all_of(job_id) and "/" not in state_name:
            assert glob.matches(job_id, state_name)
            assert glob.matches_job(job_id)

    def test_all_of_a_job_takes_a_wildcard_for_the_state(self) -> None:
        """C1: only ``*`` means whatever there could be."""
        assert StateGlob("flights/*").matches_all_of("flights")
        assert StateGlob("f*/**").matches_all_of("flights")
        assert not StateGlob("flights/*").matches_all_of("trains")
        assert not StateGlob("flights/a*").matches_all_of("flights")
        assert not StateGlob("flights/?*").matches_all_of("flights")


class TestText:
    @pytest.mark.proves("C4")
    @pytest.mark.parametrize(
        "text",
        [
            "",
            "flights",
            "/",
            "flights/",
            "/aircraft",
            "a/b/c",
            "a/b\n",
            7,
            None,
            ["a/b"],
            "a/" + "b" * GLOB_LENGTH_MAX,
        ],
    )
    def test_other_text_is_refused(self, text: Any) -> None:
        """C4: a glob that could never match is a mistake, and the error shows one."""
        with pytest.raises(ConfigurationError, match=r"JOB/STATE, where each"):
            StateGlob(text)

    def test_a_glob_is_a_value(self) -> None:
        """Two globs of one text are one; it survives pickling and gives its text."""
        glob = StateGlob("flights/*")
        assert to_state_glob("flights/*") == to_state_glob(glob) == glob
        assert hash(glob) == hash(StateGlob("flights/*"))
        copy = pickle.loads(pickle.dumps(glob))
        assert copy == glob
        assert copy.matches("flights", "aircraft")
        assert str(glob) == "flights/*"
        assert repr(glob) == "StateGlob(text='flights/*')"
