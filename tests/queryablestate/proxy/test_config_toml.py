from __future__ import annotations

import re
import tomllib
from contextlib import suppress
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zmq.utils import z85

from nameservice import ConfigurationError
from queryablestate.proxy.access import AccessList, CallerEntry, token_sha256
from queryablestate.proxy.cache import CacheRule
from queryablestate.proxy.config import ProxyConfig
from queryablestate.proxy.config_toml import parse_proxy_config, print_config
from queryablestate.proxy.rate_limit import RateLimitRule, RateLimitScope


HASH = token_sha256("t")


def texts(*, without: str = "") -> st.SearchStrategy[str]:
    """Return what can be printed (`str.isprintable`) and has no such character."""
    others = st.characters(exclude_categories=("C", "Z"), exclude_characters=without)
    return st.one_of(
        st.text(alphabet="\"'\\#[]=. a", min_size=1, max_size=8),
        st.text(alphabet=others, min_size=1, max_size=8),
    )


printable = texts()
names = texts(without="/").filter(lambda text: text != "anonymous")
globs = st.builds(
    "{}/{}".format, st.one_of(names, st.just("*")), st.one_of(names, st.just("*"))
)
seconds = st.one_of(st.integers(1, 60), st.floats(0.01, 60))
counts = st.integers(1, 10_000_000)

entries = st.builds(
    CallerEntry,
    name=names,
    token_sha256=st.binary(min_size=1).map(lambda raw: token_sha256(raw.hex())),
    read=st.lists(globs, max_size=3),
    write=st.lists(globs, max_size=2),
    admin=st.booleans(),
    node=st.just(value=True),
) | st.builds(
    CallerEntry,
    name=names,
    public_key=st.binary(min_size=32, max_size=32).map(
        lambda raw: z85.encode(raw).decode("ascii")
    ),
    admin=st.just(value=True),
)
access_lists = st.lists(
    entries,
    max_size=3,
    unique_by=(lambda entry: entry.name, lambda entry: entry.credential),
).map(lambda found: AccessList(callers=found or None))
limits = st.builds(
    RateLimitRule,
    scope=st.sampled_from(RateLimitScope),
    caller=printable,
    state=globs,
    keys_per_second=st.one_of(st.integers(1, 10**9), st.floats(0.001, 1e9)),
    burst=st.integers(1, 10**9),
)
cache_rules = st.builds(CacheRule, state=globs, ttl_seconds=st.floats(0, 86_400))
configs = st.builds(
    ProxyConfig,
    bind=st.sampled_from(["tcp://127.0.0.1:0", "tcp://*:5180", "tcp://[::1]:1"]),
    advertised_host=st.sampled_from(["proxy-1", "fe80::1"]),
    is_insecure_allowed=st.just(value=True),
    curve_public_key_file=printable,
    curve_secret_key_file=printable,
    deadline_seconds_default=seconds,
    deadline_seconds_max=st.floats(60, 3600),
    commit_timeout_seconds_max=seconds,
    session_timeout_seconds=seconds,
    frame_size_bytes_max=st.integers(65_536, 60 << 20),
    connections_max=counts,
    session_count_max=counts,
    pending_count_max=counts,
    keys_per_request_max=counts,
    job_count_max=counts,
    state_count_max=counts,
    node_count_max=counts,
    replica_count=st.integers(1, 16),
    joining_key_groups_max=counts,
    cache_size_bytes_max=st.integers(0, 2**40),
    access=access_lists,
    rate_limits=st.lists(limits, max_size=3),
    cache=st.lists(cache_rules, max_size=3),
)


def parse(text: str, **overrides: Any) -> ProxyConfig:
    """Return the configuration of a file ``proxy.toml``."""
    return parse_proxy_config(text, source="proxy.toml", overrides=overrides)


def error(text: str, **overrides: Any) -> str:
    """Return what is wrong with *text*."""
    with pytest.raises(ConfigurationError) as caught:
        parse(text, **overrides)
    message = str(caught.value)
    assert message.startswith("proxy.toml")
    return message


@pytest.mark.proves("C4")
class TestPrinting:
    @given(configs)
    def test_what_is_printed_parses_back(self, config: ProxyConfig) -> None:
        """C4: a printed configuration is the same configuration, whatever it holds."""
        assert parse(print_config(config)) == config

    def test_the_defaults_are_printed_in_full(self) -> None:
        """C4: every setting has its name, its default and its meaning in the file."""
        text = print_config(ProxyConfig())
        assert parse(text) == parse("") == ProxyConfig()
        for attribute in attrs.fields(ProxyConfig):
            name = {"access": "[callers."}.get(attribute.name, attribute.name)
            assert re.search(rf"^(# )?\[*{re.escape(name)}", text, re.MULTILINE), name
        assert 'bind = "tcp://127.0.0.1:0"' in text
        assert "frame_size_bytes_max = 16_777_216" in text
        assert "session_timeout_seconds = 10.0" in text
        assert "is_insecure_allowed = false" in text

    def test_its_lines_fit_a_terminal(self) -> None:
        """C4: comments are wrapped, and say what takes a restart."""
        lines = print_config(ProxyConfig()).splitlines()
        assert max(map(len, lines)) <= 80
        assert sum("restart." in line for line in lines) == 9
        assert not any(line != line.rstrip() for line in lines)

    def test_its_examples_are_right(self) -> None:
        """C4: with credentials in their places, what the comments show is accepted."""
        text = print_config(ProxyConfig())
        shown = re.sub(r"^# (\[\S+\]|\w+ = .*)$", r"\1", text, flags=re.MULTILINE)
        assert "64 hexadecimal digits" in error(shown)
        key = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
        shown = shown.replace('"64 hexadecimal digits"', f'"{HASH}"', 1)
        shown = shown.replace('"64 hexadecimal digits"', f'"{token_sha256("u")}"')
        shown = re.sub('"40 characters, .*"', lambda _: f'"{key}"', shown)
        config = parse(shown)
        assert config.access.callers is not None
        assert [entry.name for entry in config.access.callers] == [
            "dashboard",
            "flights-job",
            "node",
        ]
        assert config.advertised_host is not None
        assert config.uses_curve
        assert [rule.burst for rule in config.rate_limits] == [20_000, 100_000]
        assert config.cache == (CacheRule(state="flights/*", ttl_seconds=2.0),)

    @given(printable)
    def test_text_is_quoted_as_toml_wants_it(self, text: str) -> None:
        """C4: quotes, backslashes and all other printable text come back."""
        config = ProxyConfig(
            curve_public_key_file=f"p{text}", curve_secret_key_file="s"
        )
        document = tomllib.loads(print_config(config))
        assert document["curve_public_key_file"] == f"p{text}"


class TestParsing:
    @pytest.mark.proves("C4")
    def test_a_file_says_only_what_differs(self) -> None:
        """C4: everything else is as by default."""
        config = parse(
            f"""
            deadline_seconds_max = 30
            [callers.dashboard]
            token_sha256 = "{HASH}"
            read = ["flights/*", "*/aircraft"]
            [callers."the job"]
            token_sha256 = "{token_sha256("u")}"
            write = ["flights/*"]
            [[rate_limits]]
            scope = "state"
            keys_per_second = 0.5
            [[cache]]
            ttl_seconds = 2
            [[cache]]
            state = "a/b"
            ttl_seconds = 0
            """
        )
        assert config == ProxyConfig(
            deadline_seconds_max=30,
            access=AccessList(
                callers=[
                    CallerEntry(
                        name="dashboard",
                        token_sha256=HASH,
                        read=["flights/*", "*/aircraft"],
                    ),
                    CallerEntry(
                        name="the job",
                        token_sha256=token_sha256("u"),
                        write=["flights/*"],
                    ),
                ]
            ),
            rate_limits=[
                RateLimitRule(scope=RateLimitScope.STATE, keys_per_second=0.5, burst=1)
            ],
            cache=[
                CacheRule(ttl_seconds=2),
                CacheRule(state="a/b", ttl_seconds=0),
            ],
        )

    @pytest.mark.proves("C4")
    def test_overrides_outweigh_the_file(self) -> None:
        """C4: an option of the command line is not undone by the file."""
        text = 'bind = "tcp://10.0.0.5:5180"\ndeadline_seconds_max = 30'
        config = parse(text, bind="tcp://127.0.0.1:1")
        assert config.bind == "tcp://127.0.0.1:1"
        assert config.deadline_seconds_max == 30

    @pytest.mark.proves("C4")
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("bind =", "is not valid TOML: Invalid value (at end of document)"),
            ("bind = 1" + "0" * 5_000, "is not valid TOML: Exceeds the limit"),
            ("bind = " + "[" * 100_000, "is not valid TOML: it is nested too deeply"),
            (
                "connection_count_max = 1",
                "connection_count_max is called connections_max",
            ),
            ("bnd = 1", "there is no setting 'bnd' here: did you mean bind?"),
            ("deadline_max = 1", "did you mean deadline_seconds_max?"),
            ("zzz = 1", "no setting 'zzz' here: known are advertised_host, bind, cac"),
            ("access = 1", "there is no setting 'access' here"),
            ("callers = 1", "callers must be tables: [callers.NAME]"),
            ("callers.a = 1", "caller 'a' must be a table, not 1"),
            ("[callers]", "callers is empty"),
            ("[callers.a]", "caller 'a': it must have either token_sha256 or public"),
            (
                "[callers.a]\ntoken = 't'",
                "caller 'a': there is no setting 'token' here",
            ),
            ("[callers.a]\nname = 'b'", "caller 'a': there is no setting 'name' here"),
            ("[callers.a]\nraed = []", "did you mean read?"),
            ("[callers.a]\nbind = 't'", "move it above the first [table]"),
            ("[callers.''.b]", "caller '': there is no setting 'b' here"),
            ("rate_limits = 1", "rate_limits must be tables: [[rate_limits]]"),
            ("[rate_limits]", "rate_limits must be tables: [[rate_limits]]"),
            ("rate_limits = [1]", "rule 1 of rate_limits must be a table, not 1"),
            (
                "[[rate_limits]]",
                "rule 1 of rate_limits must say scope and keys_per_second",
            ),
            (
                "rate_limits = [{scope='caller', keys_per_second=1}, {scope='state'}]",
                "rule 2 of rate_limits must say keys_per_second",
            ),
            (
                "[[rate_limits]]\nscope='caller'\nkeys_per_second=-1",
                "rule 1 of rate_limits: keys_per_second must be 0.001 to",
            ),
            ("[[cache]]", "rule 1 of cache must say ttl_seconds"),
            ("[[cache]]\nttl_seconds = '1s'", "rule 1 of cache: ttl_seconds must be a"),
            ("[cache]\nttl_seconds = 1", "cache must be tables: [[cache]] for each"),
            ("deadline_seconds_max = 1979-05-27", "deadline_seconds_max must be a num"),
            (
                "deadline_seconds_max = 1",
                "deadline_seconds_default (5) must be at most",
            ),
        ],
    )
    def test_a_mistake_is_named(self, text: str, message: str) -> None:
        """C4: the error says where it is, what is wrong, and often what was meant."""
        assert message in error(text)

    @pytest.mark.proves("C1")
    def test_no_credential_is_quoted(self) -> None:
        """C1: a token that was written in place of its hash is not shown."""
        assert "s3cret" not in error("[callers.a]\ntoken_sha256 = 's3cret'")
        assert "s3cret" not in error("[callers.a]\npublic_key = 's3cret'")
        assert "s3cret" not in error("[callers.a]\ntoken = 's3cret'")

    @pytest.mark.proves("C4")
    @given(st.text(max_size=60))
    def test_whatever_is_no_configuration_is_a_configuration_error(
        self, text: str
    ) -> None:
        """C4: nothing else escapes, whatever the file holds."""
        with suppress(ConfigurationError):
            parse(text)

    @pytest.mark.proves("C4")
    @given(
        st.dictionaries(
            st.sampled_from(
                ["callers", *(field.name for field in attrs.fields(ProxyConfig))]
            ),
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
                lambda inner: (
                    st.lists(inner, max_size=2)
                    | st.dictionaries(
                        st.sampled_from(
                            [
                                *("a", "read", "admin", "token_sha256", "public_key"),
                                *("scope", "burst", "keys_per_second", "ttl_seconds"),
                            ]
                        ),
                        inner,
                        max_size=3,
                    )
                ),
                max_leaves=6,
            ),
            max_size=3,
        )
    )
    def test_no_type_of_value_is_a_surprise(self, document: dict[str, Any]) -> None:
        """C4: a value of the wrong type is a mistake that is told, at every place."""
        lines = [f"{name} = {inline(value)}" for name, value in document.items()]
        with suppress(ConfigurationError):
            parse("\n".join(lines))


def inline(value: object) -> str:
    """Return *value* as TOML; text may be anything here, so it is written as is."""
    match value:
        case dict():
            pairs = [f"{name} = {inline(item)}" for name, item in value.items()]
            return "{" + ", ".join(pairs) + "}"
        case list():
            return "[" + ", ".join(inline(item) for item in value) + "]"
        case bool():
            return str(value).lower()
        case str():
            return '"' + "".join(c if c.isalnum() else "/" for c in value) + '"'
        case None:
            return "1979-05-27"
        case _:
            return str(value)
