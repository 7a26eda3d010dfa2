from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import pytest

from leaderserver import ServerConfig
from nameservice import ConfigurationError
from zmqtransport import Endpoint


CURVE: dict[str, Any] = {
    "curve_public_key_file": "server.key",
    "curve_secret_key_file": Path("server.key_secret"),
    "allow_list_file": "clients.toml",
}

SECONDS = (
    "lease_seconds_min",
    "lease_seconds_max",
    "lease_seconds_unrecorded_max",
    "session_timeout_seconds_min",
    "session_timeout_seconds_max",
)
COUNTS = (
    "connections_max",
    "sessions_max",
    "contenders_per_component_max",
    "contenders_per_session_max",
    "subscriptions_per_session_max",
    "components_max",
    "queued_replies_per_peer_max",
)


def _setting(name: str, value: object) -> dict[str, Any]:
    """Return one setting, of whatever type: mypy would not pass most of these."""
    return {name: value}


class TestDefaults:
    def test_they_fit_each_other_and_stay_on_this_machine(self) -> None:
        """Without a setting the server is reached from this machine alone (N4)."""
        config = ServerConfig()
        assert config.bind_endpoint == Endpoint(host="127.0.0.1", port=5170)
        assert config.publish_endpoint == Endpoint(host="127.0.0.1", port=0)
        assert not config.uses_curve
        assert config.lease_ns_min == 50_000_000
        assert config.lease_ns_max == 1_000_000_000
        assert config.session_timeout_ns_min == 100_000_000
        assert config.session_timeout_ns_max == 300_000_000_000

    def test_the_largest_commit_fits_into_a_frame(self) -> None:
        """Values of 1,000,000 bytes on 1,000 paths of four-byte characters (L3)."""
        largest = 1_000_000 + 1_000 * (255 * 4 + 50) + 4_096
        assert ServerConfig().frame_size_bytes_max >= largest

    def test_a_configuration_is_a_value(self) -> None:
        """It can be compared, hashed and sent to another process."""
        config = ServerConfig(bind="tcp://127.0.0.1:0")
        assert pickle.loads(pickle.dumps(config)) == config
        assert hash(config) == hash(ServerConfig(bind="tcp://127.0.0.1:0"))


class TestEndpoints:
    def test_the_publishing_port_follows_the_host(self) -> None:
        """By default changes are published on the host of the request port."""
        assert ServerConfig(bind="tcp://[::1]:0").publish_endpoint == Endpoint(
            host="::1", port=0
        )

    def test_the_publishing_port_can_be_set(self) -> None:
        """A firewall wants to know the port."""
        config = ServerConfig(publish_bind="tcp://127.0.0.1:5171")
        assert config.publish_endpoint == Endpoint(host="127.0.0.1", port=5171)

    def test_one_port_is_not_enough(self) -> None:
        """Two sockets can not share a port; port 0 is no port yet."""
        with pytest.raises(ConfigurationError, match="publish_bind must differ"):
            ServerConfig(publish_bind="tcp://127.0.0.1:5170")
        ServerConfig(bind="tcp://127.0.0.1:0", publish_bind="tcp://127.0.0.1:0")

    @pytest.mark.parametrize("name", ["bind", "publish_bind", "publish_address"])
    @pytest.mark.parametrize("text", ["127.0.0.1:5170", "udp://127.0.0.1:1", ""])
    def test_what_is_no_endpoint_is_refused(self, name: str, text: str) -> None:
        """A malformed endpoint is an error that shows the right form."""
        with pytest.raises(ConfigurationError, match="tcp://HOST:PORT"):
            ServerConfig(**_setting(name, text))

    @pytest.mark.parametrize("name", ["bind", "publish_bind", "publish_address"])
    def test_what_is_no_text_is_refused(self, name: str) -> None:
        """A number where a text belongs is a mistake, not a port."""
        with pytest.raises(ConfigurationError, match=f"{name} must be text"):
            ServerConfig(**_setting(name, 5170))

    @pytest.mark.parametrize("text", ["tcp://*:5171", "tcp://example.org:0"])
    def test_clients_are_told_where_they_can_connect(self, text: str) -> None:
        """No socket can connect to every interface, or to port 0."""
        with pytest.raises(ConfigurationError, match="cannot connect to"):
            ServerConfig(publish_address=text)


class TestSecurity:
    @pytest.mark.parametrize(
        "settings",
        [
            {"bind": "tcp://*:5170"},
            {"bind": "tcp://10.0.0.5:5170"},
            {"publish_bind": "tcp://0.0.0.0:5171"},
        ],
    )
    def test_others_must_prove_who_they_are(self, settings: dict[str, Any]) -> None:
        """Beyond loopback: CURVE, or the word that it is wanted so (N4)."""
        with pytest.raises(ConfigurationError, match="is_insecure_allowed"):
            ServerConfig(**settings)
        assert not ServerConfig(**settings, is_insecure_allowed=True).uses_curve
        assert ServerConfig(**settings, **CURVE).uses_curve

    def test_an_old_name_is_answered_with_the_new_one(self) -> None:
        """Who has an old program need not look for what it is called now."""
        old: dict[str, Any] = {"insecure": True}
        expected = "insecure is called is_insecure_allowed now"
        with pytest.raises(ConfigurationError, match=expected):
            ServerConfig(**old)

    @pytest.mark.parametrize("left_out", sorted(CURVE))
    def test_curve_needs_all_its_files(self, left_out: str) -> None:
        """Half a configuration is none; the error names the missing half (N4)."""
        files = {name: path for name, path in CURVE.items() if name != left_out}
        with pytest.raises(ConfigurationError, match=f"set {left_out} too"):
            ServerConfig(**files)

    def test_files_are_not_shown(self) -> None:
        """Where keys are kept is not for a log."""
        assert "server.key" not in repr(ServerConfig(**CURVE))

    @pytest.mark.parametrize("name", [*sorted(CURVE), "data_dir"])
    @pytest.mark.parametrize("value", ["", 7])
    def test_a_path_is_a_path(self, name: str, value: object) -> None:
        """An empty path, or a number, is a mistake."""
        with pytest.raises(ConfigurationError, match=f"{name} must be a path"):
            ServerConfig(**_setting(name, value))

    def test_a_flag_is_true_or_false(self) -> None:
        """The text ``no`` would be true: it must not open a server to the world."""
        expected = "is_insecure_allowed must be true or false"
        with pytest.raises(ConfigurationError, match=expected):
            ServerConfig(is_insecure_allowed="no")  # type: ignore[arg-type]


class TestLimits:
    @pytest.mark.parametrize("name", SECONDS)
    @pytest.mark.parametrize("value", [0, -1, 0.009, 3600.5, math.nan, math.inf])
    def test_times_are_possible(self, name: str, value: float) -> None:
        """No duration is zero, negative, endless or not a number."""
        with pytest.raises(ConfigurationError, match=f"{name} must be 0.01 to 3600"):
            ServerConfig(**_setting(name, value))

    @pytest.mark.parametrize("name", SECONDS)
    @pytest.mark.parametrize("value", ["1", None, True])
    def test_times_are_numbers(self, name: str, value: object) -> None:
        """Text, nothing and truth are no durations."""
        with pytest.raises(ConfigurationError, match="a number of seconds"):
            ServerConfig(**_setting(name, value))

    @pytest.mark.parametrize("name", COUNTS)
    @pytest.mark.parametrize("value", [0, -1, 10_000_001])
    def test_counts_are_possible(self, name: str, value: int) -> None:
        """Every limit is a limit: at least one, and not beyond all memory (N3)."""
        with pytest.raises(ConfigurationError, match=f"{name} must be 1 to 10,000,000"):
            ServerConfig(**_setting(name, value))
        ServerConfig(**_setting(name, 1))
        ServerConfig(**_setting(name, 10_000_000))

    @pytest.mark.parametrize("name", [*COUNTS, "frame_size_bytes_max"])
    @pytest.mark.parametrize("value", [1.5, "9", None, True])
    def test_counts_are_whole_numbers(self, name: str, value: object) -> None:
        """Half a connection is none."""
        with pytest.raises(ConfigurationError, match="must be a whole number"):
            ServerConfig(**_setting(name, value))

    @pytest.mark.parametrize("value", [65_535, 60 * 1024 * 1024 + 1])
    def test_frames_hold_something_but_not_everything(self, value: int) -> None:
        """A limit that no request fits into, or that bounds nothing, is refused."""
        with pytest.raises(ConfigurationError, match="65,536 to 62,914,560 bytes"):
            ServerConfig(frame_size_bytes_max=value)

    def test_the_shortest_lease_is_at_most_the_longest(self) -> None:
        """Relations between settings are checked, and both are named."""
        with pytest.raises(ConfigurationError, match=r"lease_seconds_min \(2\)"):
            ServerConfig(lease_seconds_min=2, session_timeout_seconds_min=9)
        ServerConfig(lease_seconds_min=1, session_timeout_seconds_min=2)

    def test_the_shortest_session_is_at_most_the_longest(self) -> None:
        """As for leases."""
        with pytest.raises(
            ConfigurationError, match=r"session_timeout_seconds_min \(301\)"
        ):
            ServerConfig(session_timeout_seconds_min=301)
        ServerConfig(session_timeout_seconds_min=300)

    def test_long_leases_need_a_record(self, tmp_path: Path) -> None:
        """E9: without a data directory no later server knows how long to wait."""
        with pytest.raises(ConfigurationError, match="needs a data_dir"):
            ServerConfig(lease_seconds_max=2)
        config = ServerConfig(lease_seconds_max=2, data_dir=tmp_path)
        assert config.lease_ns_max == 2_000_000_000
        config = ServerConfig(lease_seconds_max=2, lease_seconds_unrecorded_max=3)
        assert config.lease_ns_unrecorded_max == 3_000_000_000

    def test_a_session_outlives_its_lease(self) -> None:
        """The shortest session holds two of the shortest leases (design §2)."""
        with pytest.raises(ConfigurationError, match="a session must outlive its"):
            ServerConfig(lease_seconds_min=0.06, session_timeout_seconds_min=0.11)
        ServerConfig(lease_seconds_min=0.06, session_timeout_seconds_min=0.12)
