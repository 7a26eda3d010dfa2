from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nameservice import ConfigurationError
from queryablestate.node.config import NodeConfig


def settings(**changed: Any) -> NodeConfig:
    """Return a configuration with some settings changed."""
    return NodeConfig(**{"data_dir": "/var/lib/lodestar", **changed})


class TestDefaults:
    def test_only_the_directory_has_to_be_said(self) -> None:
        """A node of one's own machine needs no more; it listens on loopback."""
        config = settings()
        assert str(config.bind_endpoint) == "tcp://127.0.0.1:0"
        assert not config.uses_curve
        assert config.stage_retention_us == 24 * 3600 * 1_000_000

    def test_the_core_goes_by_the_same_limits(self) -> None:
        """What is configured is what is kept to."""
        limits = settings(
            questions_waiting_max=1,
            chunks_per_writer_max=2,
            chunks_size_bytes_max=32 << 20,
        ).limits
        assert limits.questions_waiting_max == 1
        assert limits.chunks_per_writer_max == 2
        assert limits.chunks_size_bytes_max == 32 << 20

    def test_secrets_are_not_shown(self) -> None:
        """Neither the token nor where the keys are."""
        config = settings(
            token="hush",
            curve_public_key_file="/keys/a.key",
            curve_secret_key_file="/keys/a.key_secret",
            allow_list_file="/keys/list.toml",
        )
        assert config.uses_curve
        assert "hush" not in repr(config)
        assert "/keys" not in repr(config)


class TestRefusals:
    @pytest.mark.parametrize(
        "changed",
        [
            {"data_dir": ""},
            {"data_dir": 7},
            {"bind": "here"},
            {"readers": -1},
            {"readers": 65},
            {"readers": True},
            {"readers": 1.0},
            {"bind": "tcp://127.0.0.1:65534", "readers": 2},
            {"bind": 7},
            {"advertised_host": "*"},
            {"advertised_host": "no host"},
            {"advertised_host": ""},
            {"node_id": ""},
            {"node_id": "two\nlines"},
            {"node_id": "x" * 256},
            {"node_id": "a b"},
            {"node_id": "b/c"},
            {"token": ""},
            {"token_file": ""},
            {"is_insecure_allowed": 1},
            {"is_durable": None},
            {"size_bytes_max": 1},
            {"size_bytes_max": True},
            {"stage_retention_seconds": 0},
            {"stage_retention_seconds": float("nan")},
            {"chunk_size_bytes_max": 1},
            {"staged_bytes_per_job_max": 1},
            {"chunks_per_writer_max": 0},
            {"questions_waiting_max": 0},
            {"connections_max": 0},
            {"answer_size_bytes_max": 1},
        ],
        ids=str,
    )
    def test_a_setting_that_cannot_be_is_refused(self, changed: dict[str, Any]) -> None:
        """Each setting says what it must be, when the configuration is made."""
        with pytest.raises(ConfigurationError):
            settings(**changed)

    def test_a_name_may_be_as_long_as_any(self) -> None:
        """255 characters, as component ids; one more is refused above."""
        assert settings(node_id="x" * 255).node_id == "x" * 255

    def test_a_token_is_given_once(self, tmp_path: Path) -> None:
        """Two tokens would leave open which one counts."""
        with pytest.raises(ConfigurationError, match="not both"):
            settings(token="a", token_file=tmp_path)

    @pytest.mark.parametrize(
        "given",
        [
            {"curve_public_key_file": "a"},
            {"curve_public_key_file": "a", "curve_secret_key_file": "b"},
            {"allow_list_file": "c"},
        ],
        ids=str,
    )
    def test_curve_needs_keys_and_a_list(self, given: dict[str, str]) -> None:
        """N4: encryption without a list of who may come in admits everybody."""
        with pytest.raises(ConfigurationError, match="CURVE needs all of"):
            settings(**given)

    def test_one_chunk_fits_into_what_may_wait(self) -> None:
        """A limit that no chunk fits into would refuse every chunk for ever."""
        with pytest.raises(ConfigurationError, match="one chunk has to fit"):
            settings(chunk_size_bytes_max=2 << 20, chunks_size_bytes_max=1 << 20)

    @pytest.mark.proves("B4")
    def test_one_chunk_fits_into_what_a_job_may_stage(self) -> None:
        """B4: a quota that no chunk fits into would refuse every batch."""
        with pytest.raises(ConfigurationError, match="staged_bytes_per_job_max"):
            settings(chunk_size_bytes_max=2 << 20, staged_bytes_per_job_max=1 << 20)

    def test_other_machines_are_let_in_on_purpose_only(self) -> None:
        """N4: beyond loopback there is CURVE, or somebody has said: without."""
        with pytest.raises(ConfigurationError, match="is_insecure_allowed"):
            settings(bind="tcp://0.0.0.0:0")
        settings(bind="tcp://0.0.0.0:0", is_insecure_allowed=True)
        settings(
            bind="tcp://0.0.0.0:0",
            curve_public_key_file="a",
            curve_secret_key_file="b",
            allow_list_file="c",
        )
