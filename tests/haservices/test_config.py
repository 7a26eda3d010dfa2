from __future__ import annotations

import copy
import os
import pickle
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haservices.config import Backend, HAConfig, ServerAddress
from nameservice import ConfigurationError


if TYPE_CHECKING:
    from pathlib import Path


SERVER = "leaderserver://127.0.0.1:5170"
ENSEMBLE = "zookeeper://h1:2181,h2:2182/lodestar/prod"
CURVE: dict[str, Any] = {
    "curve_public_key_file": "own.public",
    "curve_secret_key_file": "own.secret",
    "curve_server_key_file": "server.public",
}
TLS: dict[str, Any] = {
    "zookeeper_tls_ca_file": "ca.pem",
    "zookeeper_tls_cert_file": "own.pem",
    "zookeeper_tls_key_file": "own.key",
}


def refusal(**settings: Any) -> str:
    """Return why a configuration of *settings* is refused."""
    with pytest.raises(ConfigurationError) as caught:
        HAConfig(**settings)
    return str(caught.value)


@pytest.fixture
def empty_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A working directory without a file, and an environment without settings."""
    for name in [field.name for field in attrs.fields(HAConfig)] + ["config"]:
        monkeypatch.delenv("LODESTAR_" + name.upper(), raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class TestDefaults:
    def test_defaults_are_the_documented_ones(self) -> None:
        """The table of settings in the documentation says what a URL alone means."""
        config = HAConfig(url=SERVER)
        assert config.to_settings() == {
            "url": SERVER,
            "cluster_id": "default",
            "session_timeout_seconds": 10.0,
            "lease_seconds": 0.5,
            "connect_timeout_seconds": 5.0,
            "on_suspended": "keep",
        }
        assert not config.is_encrypted

    def test_confirm_timeout_is_the_session_timeout(self) -> None:
        """E3: left out, it is as long as a session may be silent."""
        config = HAConfig(url=SERVER, session_timeout_seconds=7.0)
        assert config.effective_confirm_timeout_seconds == 7.0
        config = HAConfig(url=SERVER, confirm_timeout_seconds=2.0)
        assert config.effective_confirm_timeout_seconds == 2.0


class TestURL:
    @pytest.mark.parametrize(
        ("url", "name"), [("embedded:", ""), ("embedded:suite", "suite")]
    )
    def test_embedded(self, url: str, name: str) -> None:
        """`embedded:NAME` is shared by that name, `embedded:` alone is private."""
        config = HAConfig(url=url)
        assert config.backend is Backend.EMBEDDED
        assert config.embedded_name == name

    @pytest.mark.parametrize(
        ("url", "host", "port", "shown"),
        [
            (SERVER, "127.0.0.1", 5170, "127.0.0.1:5170"),
            ("leaderserver://name.example:1", "name.example", 1, "name.example:1"),
            ("leaderserver://[::1]:65535", "::1", 65535, "[::1]:65535"),
            ("leaderserver://h:5170/", "h", 5170, "h:5170"),
        ],
    )
    def test_leaderserver(self, url: str, host: str, port: int, shown: str) -> None:
        """A LeaderServer is one host and one port; IPv6 addresses in brackets."""
        config = HAConfig(url=url)
        assert config.backend is Backend.LEADERSERVER
        assert config.server_addresses == (ServerAddress(host=host, port=port),)
        assert str(config.server_addresses[0]) == shown

    @pytest.mark.parametrize(
        ("path", "chroot"),
        [("", ""), ("/", ""), ("/a", "/a"), ("/a/b/", "/a/b"), ("/a%20b", "/a b")],
    )
    def test_zookeeper(self, path: str, chroot: str) -> None:
        """An ensemble is hosts and ports, and the path that all of ours is under."""
        config = HAConfig(url=f"zookeeper://h1:2181,[::1]:2182{path}")
        assert config.backend is Backend.ZOOKEEPER
        assert config.server_addresses == (
            ServerAddress(host="h1", port=2181),
            ServerAddress(host="::1", port=2182),
        )
        assert config.chroot == chroot

    @pytest.mark.parametrize(
        ("url", "why"),
        [
            (7, "url must be text, not int"),
            ("", "names no known backend: it must begin with 'embedded:'"),
            ("h:5170", "names no known backend"),
            ("consul://h:1", "names no known backend"),
            ("LEADERSERVER://h:1", "names no known backend"),
            ("embedded://x", "the name after 'embedded:' must be printable"),
            ("embedded:" + "x" * 256, "the name after 'embedded:' must have 1 to 255"),
            ("leaderserver:h:1", "names no server: write it as scheme://host:port"),
            ("leaderserver://", "names no server"),
            ("leaderserver:///path", "names no server"),
            ("leaderserver://h", "'h' in the url 'leaderserver://h' is not host:port"),
            ("leaderserver://:1", "':1' in the url"),
            ("leaderserver://a b:1", "'a b:1' in the url"),
            ("leaderserver://::1:1", "'::1:1' in the url"),
            ("leaderserver://h:", "the port in 'h:'"),
            ("leaderserver://h:0", "the port in 'h:0'"),
            ("leaderserver://h:65536", "must be 1 to 65535"),
            ("leaderserver://h:-1", "the port in 'h:-1'"),
            ("leaderserver://h:٣", "the port in 'h:٣'"),
            ("leaderserver://h:" + "9" * 5_000, "must be 1 to 65535"),
            ("leaderserver://h:1\n", "must be printable"),
            ("leaderserver://[::1:1", "is malformed"),
            ("leaderserver://h:1,k:1", "a LeaderServer is one host and port"),
            (
                "leaderserver://h:1/path",
                "a LeaderServer has no paths: take '/path' off",
            ),
            ("leaderserver://u:p@h:1", "credentials and options are settings of their"),
            ("leaderserver://h:1?x=1", "may have a host, a port and a path only"),
            ("zookeeper://h:1#x", "may have a host, a port and a path only"),
            ("zookeeper://h:1,", "'' in the url"),
            ("zookeeper://h:1//a", "between single slashes"),
            ("zookeeper://h:1/a//b", "between single slashes"),
            ("zookeeper://h:1/a/../b", "none of them '.' or '..'"),
            ("zookeeper://h:1/./b", "none of them '.' or '..'"),
            ("zookeeper://h:1/a%00", "must be printable names"),
        ],
    )
    def test_malformed_url_is_refused(self, url: str, why: str) -> None:
        """L4: unknown schemes and malformed URLs fail at construction, in words."""
        assert why in refusal(url=url)

    @given(st.text(max_size=40))
    def test_no_other_error(self, text: str) -> None:
        """L4: whatever text is given, it is taken or refused; nothing else escapes."""
        for url in (text, f"leaderserver://{text}", f"zookeeper://{text}"):
            try:
                config = HAConfig(url=url)
            except ConfigurationError:
                continue
            assert config.url == url


class TestTimes:
    @pytest.mark.parametrize(
        ("settings", "why"),
        [
            ({"session_timeout_seconds": 0}, "must be above 0 and at most 3600"),
            ({"session_timeout_seconds": -1.0}, "must be above 0 and at most 3600"),
            ({"session_timeout_seconds": 3600.1}, "must be above 0 and at most 3600"),
            ({"session_timeout_seconds": 10**400}, "must be above 0 and at most 3600"),
            ({"session_timeout_seconds": float("nan")}, "must be above 0"),
            ({"session_timeout_seconds": float("inf")}, "must be above 0"),
            ({"session_timeout_seconds": "10"}, "must be a number of seconds"),
            ({"session_timeout_seconds": True}, "must be a number of seconds"),
            ({"session_timeout_seconds": None}, "must be a number of seconds"),
            ({"connect_timeout_seconds": 0.0}, "connect_timeout_seconds must be above"),
            ({"confirm_timeout_seconds": 0.0}, "confirm_timeout_seconds must be above"),
            (
                {"session_timeout_seconds": 0.09, "lease_seconds": 0.04},
                "session_timeout_seconds must be at least 0.1 seconds, not 0.09",
            ),
            ({"lease_seconds": 0.049}, "lease_seconds must be at least 0.05 seconds"),
            (
                {"confirm_timeout_seconds": 0.049},
                "confirm_timeout_seconds must be at least 0.05 seconds, not 0.049",
            ),
            (
                {"session_timeout_seconds": 1.0, "lease_seconds": 0.51},
                (
                    "lease_seconds (0.51) must be at most half of "
                    "session_timeout_seconds (1): lower the one or raise the other"
                ),
            ),
        ],
    )
    def test_impossible_time_is_refused(
        self, settings: dict[str, Any], why: str
    ) -> None:
        """L4: impossible timeouts fail at construction and say which to change."""
        assert why in refusal(url=SERVER, **settings)

    def test_limits_themselves_are_taken(self) -> None:
        """E4: at most half the session timeout, that is: half of it too."""
        config = HAConfig(
            url=SERVER,
            session_timeout_seconds=0.1,
            lease_seconds=0.05,
            confirm_timeout_seconds=0.05,
            connect_timeout_seconds=3600,
        )
        assert config.lease_seconds == 0.05

    def test_zookeeper_has_no_lease(self) -> None:
        """E4: there the session timeout alone decides, whatever the lease says."""
        config = HAConfig(url=ENSEMBLE, session_timeout_seconds=0.4, lease_seconds=0.5)
        assert config.session_timeout_seconds == 0.4


class TestOtherSettings:
    @pytest.mark.parametrize(
        ("settings", "why"),
        [
            ({"cluster_id": ""}, "cluster_id must have 1 to 255 characters, not 0"),
            ({"cluster_id": "a/b"}, "cluster_id must be printable and without '/'"),
            ({"on_suspended": "panic"}, 'must be "keep" or "clear", not \'panic\''),
            (
                {"curve_public_key_file": ""},
                "curve_public_key_file must be the path of a file, not ''",
            ),
            (
                {"zookeeper_auth_file": 7},
                "zookeeper_auth_file must be the path of a file, not 7",
            ),
            ({"curve_public_key_file": "k"}, "CURVE needs all of"),
            ({"zookeeper_auth_file": "a"}, "zookeeper_* settings are for zookeeper://"),
            ({"zookeeper_tls_ca_file": "a"}, "zookeeper_* settings are for"),
        ],
    )
    def test_wrong_setting_is_refused(self, settings: dict[str, Any], why: str) -> None:
        """L4: what cannot be meant fails at construction and says what to change."""
        assert why in refusal(url=SERVER, **settings)

    def test_curve_is_for_a_leaderserver(self) -> None:
        """N4: keys of the one backend are no settings of another."""
        assert HAConfig(url=SERVER, **CURVE).is_encrypted
        assert "CURVE keys are for leaderserver:// URLs" in refusal(
            url=ENSEMBLE, **CURVE
        )

    def test_tls_is_for_zookeeper(self) -> None:
        """A certificate needs its key, and somebody to trust."""
        assert HAConfig(url=ENSEMBLE, **TLS).is_encrypted
        assert HAConfig(url=ENSEMBLE, zookeeper_tls_ca_file="ca.pem").is_encrypted
        for missing in TLS:
            settings = {name: value for name, value in TLS.items() if name != missing}
            assert "a TLS certificate needs all of" in refusal(url=ENSEMBLE, **settings)

    def test_secrets_are_not_shown(self) -> None:
        """Not even the places of secrets appear in repr, and so in no log."""
        shown = repr(HAConfig(url=SERVER, **CURVE))
        shown += repr(HAConfig(url=ENSEMBLE, zookeeper_auth_file="secret.auth", **TLS))
        for value in (*CURVE.values(), *TLS.values(), "secret.auth"):
            assert value not in shown


class TestTravelling:
    @pytest.mark.parametrize(
        "config",
        [
            HAConfig(url=SERVER, lease_seconds=0.25, **CURVE),
            HAConfig(
                url=ENSEMBLE,
                cluster_id="prod",
                confirm_timeout_seconds=3.0,
                on_suspended="clear",
                zookeeper_auth_file="auth",
                **TLS,
            ),
        ],
    )
    def test_pickles(self, config: HAConfig) -> None:
        """A configuration goes into a Spark closure and comes out the same."""
        assert pickle.loads(pickle.dumps(config)) == config
        assert copy.copy(config) == config
        assert HAConfig(**config.to_settings()) == config  # type: ignore[arg-type]

    def test_embedded_refuses_to_leave_its_process(self) -> None:
        """An embedded configuration says what to use instead."""
        with pytest.raises(ConfigurationError, match="use a LeaderServer instead"):
            pickle.dumps(HAConfig(url="embedded:suite"))

    def test_is_a_value(self) -> None:
        """Equal by content, hashable, and frozen."""
        assert HAConfig(url=SERVER) == HAConfig(url=SERVER)
        assert hash(HAConfig(url=SERVER)) == hash(HAConfig(url=SERVER))
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            HAConfig(url=SERVER).url = ENSEMBLE  # type: ignore[misc]


@pytest.mark.usefixtures("empty_place")
class TestLoad:
    def test_later_outweighs_earlier(
        self, monkeypatch: pytest.MonkeyPatch, empty_place: Path
    ) -> None:
        """File, then environment, then keyword arguments; defaults for the rest."""
        (empty_place / "lodestar.toml").write_text(
            f'url = "{SERVER}"\ncluster_id = "file"\nlease_seconds = 0.1\n'
            'on_suspended = "clear"\n'
        )
        monkeypatch.setenv("LODESTAR_CLUSTER_ID", "environment")
        monkeypatch.setenv("LODESTAR_LEASE_SECONDS", "0.2")
        monkeypatch.setenv("LODESTAR_EPOCH", "7")  # not a setting: told to a child
        config = HAConfig.load(lease_seconds=0.3)
        assert config == HAConfig(
            url=SERVER,
            cluster_id="environment",
            lease_seconds=0.3,
            on_suspended="clear",
        )

    def test_file_may_be_named(
        self, monkeypatch: pytest.MonkeyPatch, empty_place: Path
    ) -> None:
        """By argument or by LODESTAR_CONFIG; a [lodestar] table may hold it all."""
        one, other = empty_place / "one.toml", empty_place / "other.toml"
        one.write_text(f'[lodestar]\nurl = "{SERVER}"\n[other]\nx = 1\n')
        other.write_text('url = "embedded:"\n')
        assert HAConfig.load(one) == HAConfig(url=SERVER)
        monkeypatch.setenv("LODESTAR_CONFIG", str(other))
        assert HAConfig.load() == HAConfig(url="embedded:")
        assert HAConfig.load(str(one)) == HAConfig(url=SERVER)

    def test_without_any_setting_it_says_where_to_set_one(self) -> None:
        """L4: nothing configured is an error that says what to do."""
        with pytest.raises(
            ConfigurationError, match=r"--url .*LODESTAR_URL .*lodestar\.toml"
        ):
            HAConfig.load()

    def test_unknown_setting_is_named_with_the_known_ones(
        self, empty_place: Path
    ) -> None:
        """L4: a misspelt setting is not ignored."""
        (empty_place / "lodestar.toml").write_text('url = "embedded:"\nlease = 1\n')
        with pytest.raises(
            ConfigurationError,
            match=r"configuration lodestar\.toml has unknown settings: lease; .*url",
        ):
            HAConfig.load()
        with pytest.raises(
            ConfigurationError, match=r"^unknown settings: lease; .*url"
        ):
            HAConfig.load(os.devnull, lease=1)

    def test_a_misspelt_setting_is_told_what_it_may_mean(
        self, empty_place: Path
    ) -> None:
        """L4: and where it stands: ``lodestar.toml`` is found without being named."""
        (empty_place / "lodestar.toml").write_text('cluster-id = "prod"\n')
        with pytest.raises(ConfigurationError) as caught:
            HAConfig.load()
        assert str(caught.value) == (
            "the configuration lodestar.toml has unknown settings: cluster-id; "
            "did you mean cluster_id?"
        )

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            (b"url = ", "is not TOML"),
            (b"\xff", "is not TOML"),
            (b"url = " + b"[" * 100_000, "is not TOML: it is nested too deeply"),
            (b"lease_seconds = 0x1" + b"0" * 5_000, "is not TOML: Exceeds the limit"),
            (b"lodestar = 7", "'lodestar' in lodestar.toml must be a table"),
        ],
    )
    def test_malformed_file_is_refused(
        self, empty_place: Path, content: bytes, why: str
    ) -> None:
        """L4: a file that cannot be meant is an error that names it."""
        (empty_place / "lodestar.toml").write_bytes(content)
        with pytest.raises(ConfigurationError) as caught:
            HAConfig.load()
        assert why in str(caught.value)

    def test_named_file_must_be_there(
        self, monkeypatch: pytest.MonkeyPatch, empty_place: Path
    ) -> None:
        """L4: only the default file may be missing."""
        monkeypatch.setenv("LODESTAR_CONFIG", str(empty_place / "gone.toml"))
        with pytest.raises(ConfigurationError, match="cannot read the configuration"):
            HAConfig.load(url=SERVER)
        monkeypatch.delenv("LODESTAR_CONFIG")
        with pytest.raises(ConfigurationError, match="No such file"):
            HAConfig.load("gone.toml", url=SERVER)
        assert HAConfig.load(url=SERVER) == HAConfig(url=SERVER)

    def test_time_in_the_environment_must_be_a_number(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """L4: the error names the variable."""
        monkeypatch.setenv("LODESTAR_LEASE_SECONDS", "fast")
        with pytest.raises(
            ConfigurationError,
            match=r"^LODESTAR_LEASE_SECONDS must be a number of seconds, not 'fast'$",
        ):
            HAConfig.load(url=SERVER)
