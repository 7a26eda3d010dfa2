from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import attrs
import pytest

from nameservice import ConfigurationError
from queryablestate.proxy.access import AccessList, CallerEntry, token_sha256
from queryablestate.proxy.cache import CacheRule
from queryablestate.proxy.config import ProxyConfig, check_reloadable
from queryablestate.proxy.rate_limit import RateLimitRule, RateLimitScope
from zmqtransport import Endpoint


KEY = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
CURVE: dict[str, Any] = {
    "curve_public_key_file": "proxy.key",
    "curve_secret_key_file": Path("proxy.key_secret"),
}
BY_TOKEN = AccessList(
    callers=[CallerEntry(name="a", token_sha256=token_sha256("t"), admin=True)]
)
BY_KEY = AccessList(callers=[CallerEntry(name="a", public_key=KEY, admin=True)])
LIMIT = RateLimitRule(scope=RateLimitScope.CALLER, keys_per_second=10)

SECONDS = (
    "deadline_seconds_default",
    "deadline_seconds_max",
    "commit_timeout_seconds_max",
    "session_timeout_seconds",
)
COUNTS = (
    "connections_max",
    "session_count_max",
    "pending_count_max",
    "keys_per_request_max",
    "job_count_max",
    "state_count_max",
    "node_count_max",
    "joining_key_groups_max",
)


def setting(name: str, value: object) -> dict[str, Any]:
    """Return one setting, of whatever type: mypy would not pass most of these."""
    return {name: value}


class TestDefaults:
    def test_they_stay_on_this_machine(self) -> None:
        """Without a setting this machine alone gets in, and may do everything (C1)."""
        config = ProxyConfig()
        assert config.bind_endpoint == Endpoint(host="127.0.0.1", port=0)
        assert config.access.is_open
        assert not config.uses_curve
        assert (config.rate_limits, config.cache) == ((), ())

    def test_an_old_name_is_answered_with_the_new_one(self) -> None:
        """Who has an old configuration need not look for what it is called now."""
        old: dict[str, Any] = {"connection_count_max": 5}
        with pytest.raises(ConfigurationError, match="is called connections_max now"):
            ProxyConfig(**old)

    def test_times_are_whole_nanoseconds(self) -> None:
        """As the control plane reckons."""
        config = ProxyConfig()
        assert config.session_timeout_ns == 10_000_000_000

    def test_a_configuration_is_a_value(self) -> None:
        """It can be compared, hashed and sent to another process."""
        config = ProxyConfig(
            access=BY_TOKEN, rate_limits=[LIMIT], cache=[CacheRule(ttl_seconds=1)]
        )
        copy = pickle.loads(pickle.dumps(config))
        assert copy == config
        assert hash(copy) == hash(config)
        assert config != ProxyConfig()

    def test_no_secret_is_in_a_repr(self) -> None:
        """C1: where keys lie, and what tokens hash to, is not shown."""
        shown = repr(ProxyConfig(access=BY_TOKEN, **CURVE))
        for name in ("keys_per", "key_groups"):
            shown = shown.replace(name, "")
        assert "key" not in shown
        assert token_sha256("t") not in shown

    def test_every_setting_says_what_it_means(self) -> None:
        """C4: the comments of the file are those of the settings, and all have one."""
        for attribute in attrs.fields(ProxyConfig):
            assert attribute.metadata["comment"].endswith("."), attribute.name
            if attribute.default is None:
                assert attribute.metadata["example"], attribute.name


class TestSettings:
    @pytest.mark.parametrize("name", SECONDS)
    @pytest.mark.parametrize(
        ("value", "match"),
        [
            ("5s", "must be a number of seconds, not '5s'"),
            (True, "must be a number of seconds, not True"),
            (0, "must be 0.01 to 3600 seconds, not 0"),
            (0.009, "must be 0.01 to 3600 seconds"),
            (3601, "must be 0.01 to 3600 seconds"),
            (math.nan, "must be 0.01 to 3600 seconds"),
        ],
    )
    def test_durations_are_seconds(self, name: str, value: object, match: str) -> None:
        """C4: the unit is in the name, and the error says it."""
        with pytest.raises(ConfigurationError, match=f"{name} {match}"):
            ProxyConfig(**setting(name, value))

    @pytest.mark.parametrize("name", COUNTS)
    @pytest.mark.parametrize(
        ("value", "match"),
        [
            ("10", "must be a whole number, not '10'"),
            (1.5, "must be a whole number, not 1.5"),
            (True, "must be a whole number, not True"),
            (0, "must be 1 to 10,000,000, not 0"),
            (10_000_001, "must be 1 to 10,000,000, not 10,000,001"),
        ],
    )
    def test_counts_are_whole(self, name: str, value: object, match: str) -> None:
        """C4: everything has a limit, and every limit has one too."""
        with pytest.raises(ConfigurationError, match=f"{name} {match}"):
            ProxyConfig(**setting(name, value))
        assert getattr(ProxyConfig(**setting(name, 1)), name) == 1

    @pytest.mark.parametrize(
        ("name", "value", "match"),
        [
            ("frame_size_bytes_max", 65_535, "must be 65,536 to 62,914,560 bytes"),
            (
                "frame_size_bytes_max",
                (60 << 20) + 1,
                "must be 65,536 to 62,914,560 bytes",
            ),
            ("frame_size_bytes_max", "16M", "a whole number of bytes, not '16M'"),
            (
                "cache_size_bytes_max",
                -1,
                "must be 0 to 1,099,511,627,776 bytes, not -1",
            ),
            ("cache_size_bytes_max", 2**40 + 1, "must be 0 to 1,099,511,627,776 bytes"),
            ("cache_size_bytes_max", 1e6, "a whole number of bytes, not 1000000.0"),
            ("bind", 5170, "bind must be printable text, not 5170"),
            ("bind", "", "bind must be printable text"),
            ("bind", "localhost", "must be tcp://HOST:PORT"),
            ("advertised_host", "a\nb", "advertised_host must be printable text"),
            ("advertised_host", "", "advertised_host must be printable text"),
            ("is_insecure_allowed", 1, "must be true or false, not 1"),
            ("curve_public_key_file", 7, "curve_public_key_file must be printable"),
            ("curve_secret_key_file", "", "curve_secret_key_file must be printable"),
            ("rate_limits", [LIMIT] * 1_001, "at most 1,000 rules, not 1,001"),
            ("cache", [CacheRule(ttl_seconds=1)] * 1_001, "at most 1,000 rules"),
        ],
    )
    def test_a_mistake_is_named(self, name: str, value: object, match: str) -> None:
        """C4: an error names the setting and says what it should be."""
        with pytest.raises(ConfigurationError, match=match):
            ProxyConfig(**setting(name, value))

    def test_the_default_deadline_is_one_that_is_allowed(self) -> None:
        """C3: who names no deadline gets no more than who names one."""
        ProxyConfig(deadline_seconds_default=60)
        with pytest.raises(
            ConfigurationError, match=r"lower the one or raise the other"
        ):
            ProxyConfig(deadline_seconds_default=60.1)


class TestEndpoints:
    @pytest.mark.parametrize("bind", ["tcp://10.0.0.5:5180", "tcp://[fe80::1]:0"])
    def test_other_machines_have_to_prove_who_they_are(self, bind: str) -> None:
        """C1: beyond this machine it takes keys and callers, or an explicit word."""
        for settings in (
            {},
            CURVE,  # encrypted, but anybody's
            {"access": BY_TOKEN},  # tokens that everybody on the way can read
        ):
            with pytest.raises(ConfigurationError, match=r"lets other machines in"):
                ProxyConfig(bind=bind, **settings)
            config = ProxyConfig(bind=bind, is_insecure_allowed=True, **settings)
            assert config.bind == bind
        assert ProxyConfig(bind=bind, access=BY_TOKEN, **CURVE).uses_curve
        assert ProxyConfig(bind=bind, access=BY_KEY, **CURVE).uses_curve

    @pytest.mark.parametrize("host", ["*", "0.0.0.0", "[::]"])
    def test_every_interface_needs_a_name(self, host: str) -> None:
        """What is published is what others connect to."""
        settings: dict[str, Any] = {
            "bind": f"tcp://{host}:0",
            "is_insecure_allowed": True,
        }
        with pytest.raises(ConfigurationError, match=r"set advertised_host"):
            ProxyConfig(**settings)
        for name in ("proxy-1", "10.0.0.5", "fe80::1"):
            config = ProxyConfig(**settings, advertised_host=name)
            assert config.advertised_host == name

    @pytest.mark.parametrize(
        "host", ["*", "0.0.0.0", "::", "tcp://a", "a:1", "a b", "1.2"]
    )
    def test_the_name_is_one_to_connect_to(self, host: str) -> None:
        """A host alone: without port, protocol or wildcard."""
        with pytest.raises(ConfigurationError, match=r"must be a host name or an addr"):
            ProxyConfig(advertised_host=host)


class TestCurve:
    @pytest.mark.parametrize("name", sorted(CURVE))
    def test_it_takes_both_files(self, name: str) -> None:
        """Half of a key pair is a mistake, never a proxy without encryption."""
        with pytest.raises(ConfigurationError, match=rf"needs both .* set (?!{name})"):
            ProxyConfig(**setting(name, "proxy.key"))
        assert ProxyConfig(**CURVE).curve_secret_key_file == "proxy.key_secret"

    def test_keys_of_callers_take_it(self) -> None:
        """C1: none can prove to hold a key where connections are not encrypted."""
        assert ProxyConfig(access=BY_KEY, **CURVE).access == BY_KEY
        with pytest.raises(ConfigurationError, match=r"caller 'a' has a public_key"):
            ProxyConfig(access=BY_KEY)


class TestReloading:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("access", BY_TOKEN),
            ("rate_limits", [LIMIT]),
            ("cache", [CacheRule(ttl_seconds=1)]),
            ("cache_size_bytes_max", 0),
            ("deadline_seconds_default", 1.0),
            ("deadline_seconds_max", 10.0),
            ("commit_timeout_seconds_max", 10.0),
            ("session_count_max", 1),
            ("pending_count_max", 1),
            ("keys_per_request_max", 1),
            ("job_count_max", 1),
            ("state_count_max", 1),
            ("node_count_max", 1),
            ("joining_key_groups_max", 1),
            ("replica_count", 16),
        ],
    )
    def test_what_is_looked_up_per_request_may_change(
        self, name: str, value: object
    ) -> None:
        """C4: access, rate limits, cache, deadlines and counts."""
        check_reloadable(ProxyConfig(), ProxyConfig(**setting(name, value)))

    @pytest.mark.parametrize(
        ("settings", "names"),
        [
            ({"bind": "tcp://127.0.0.1:5180"}, "bind"),
            ({"advertised_host": "proxy-1"}, "advertised_host"),
            ({"is_insecure_allowed": True}, "is_insecure_allowed"),
            (CURVE, "curve_public_key_file, curve_secret_key_file"),
            ({"session_timeout_seconds": 5.0}, "session_timeout_seconds"),
            ({"frame_size_bytes_max": 2**20}, "frame_size_bytes_max"),
            ({"connections_max": 5}, "connections_max"),
        ],
    )
    def test_what_sockets_and_peers_were_told_may_not(
        self, settings: dict[str, Any], names: str
    ) -> None:
        """C4: each such setting is named, and that it takes a restart."""
        with pytest.raises(
            ConfigurationError, match=rf"^{names} cannot .*: restart it"
        ):
            check_reloadable(ProxyConfig(), ProxyConfig(**settings))
