from __future__ import annotations

from pathlib import Path

import pytest

from nameservice import ConfigurationError
from queryablestate.proxy.config import ProxyConfig
from queryablestate.proxy.config_file import ProxyConfigFile, load_proxy_config
from queryablestate.proxy.config_toml import print_config


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a file says how long requests may take."""
    file = tmp_path / "proxy.toml"
    file.write_text("deadline_seconds_max = 30", encoding="utf-8")
    return file


class TestLoading:
    @pytest.mark.proves("C4")
    def test_a_file_is_its_configuration(self, path: Path) -> None:
        """C4: what was printed to a file is what the proxy then has."""
        assert load_proxy_config(path) == ProxyConfig(deadline_seconds_max=30)
        assert load_proxy_config(str(path)) == load_proxy_config(path)
        path.write_text(print_config(ProxyConfig()), encoding="utf-8")
        assert load_proxy_config(path) == ProxyConfig()

    @pytest.mark.proves("C4")
    def test_overrides_outweigh_it(self, path: Path) -> None:
        """C4: an option of the command line is not undone by the file."""
        config = load_proxy_config(path, overrides={"deadline_seconds_max": 10.0})
        assert config.deadline_seconds_max == 10.0

    @pytest.mark.proves("C4")
    def test_a_file_that_cannot_be_read_is_named(self, path: Path) -> None:
        """C4: what the system says, and of which file."""
        with pytest.raises(ConfigurationError, match=r"absent.toml: No such file"):
            load_proxy_config(path.with_name("absent.toml"))
        with pytest.raises(ConfigurationError, match=r": Is a directory"):
            load_proxy_config(path.parent)

    @pytest.mark.proves("C4")
    def test_a_file_that_is_no_text_is_named(self, path: Path) -> None:
        """C4: TOML is UTF-8."""
        path.write_bytes(b"bind = '\xff'")
        with pytest.raises(
            ConfigurationError, match=r"proxy.toml is not UTF-8: .*byte 8"
        ):
            load_proxy_config(path)

    def test_a_file_has_a_limit(self, path: Path) -> None:
        """Everything has a limit: 16 MiB."""
        path.write_bytes(b"#" * (16 * 1024 * 1024))
        assert load_proxy_config(path) == ProxyConfig()
        path.write_bytes(b"#" * (16 * 1024 * 1024 + 1))
        with pytest.raises(ConfigurationError, match=r"above 16,777,216 bytes"):
            load_proxy_config(path)


@pytest.mark.proves("C4")
class TestReloading:
    def test_a_changed_file_is_taken(self, path: Path) -> None:
        """C4: what may change while the proxy runs does."""
        file = ProxyConfigFile(path)
        assert file.config.deadline_seconds_max == 30
        path.write_text("deadline_seconds_max = 20", encoding="utf-8")
        config = file.reload()
        assert file.config is config
        assert config == ProxyConfig(deadline_seconds_max=20)

    @pytest.mark.parametrize(
        ("text", "match"),
        [
            ("deadline_seconds_max = ", r"proxy.toml is not valid TOML"),
            ("deadline_seconds_mx = 20", r"did you mean deadline_seconds_max\?"),
            ("connections_max = 5", r"proxy.toml: connections_max .*restart"),
        ],
    )
    def test_a_mistake_changes_nothing(self, path: Path, text: str, match: str) -> None:
        """C4: the last configuration that could be used stays, until one can be."""
        file = ProxyConfigFile(path)
        before = file.config
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigurationError, match=match):
            file.reload()
        assert file.config is before
        path.write_text("deadline_seconds_max = 20", encoding="utf-8")
        assert file.reload().deadline_seconds_max == 20

    def test_a_file_that_went_changes_nothing(self, path: Path) -> None:
        """C4: an editor that replaces a file removes it for a moment."""
        file = ProxyConfigFile(path)
        path.unlink()
        with pytest.raises(ConfigurationError, match=r"No such file"):
            file.reload()
        assert file.config.deadline_seconds_max == 30

    def test_overrides_stay(self, path: Path) -> None:
        """C4: an option of the command line takes no restart to stay what it is."""
        file = ProxyConfigFile(path, overrides={"bind": "tcp://127.0.0.1:5180"})
        path.write_text("deadline_seconds_max = 20", encoding="utf-8")
        assert file.reload().bind == "tcp://127.0.0.1:5180"
