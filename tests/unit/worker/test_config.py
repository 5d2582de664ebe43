"""Settings of the engine process: read, checked, refused with the variable's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.worker import __main__ as entry
from inference.worker.config import ConfigError, check_bus, from_environ


def test_it_has_a_default_for_everything(tmp_path: Path) -> None:
    config = from_environ({"HALTLINE_HOME": str(tmp_path)})
    assert config.bus_url == f"unix:{tmp_path}/run/engine-0.sock"
    assert config.served_name == config.model == "smollm2-135m-instruct"
    assert (config.broker_url, config.dtype, config.threads) == (None, "auto", None)
    check_bus(config)


def test_it_reads_what_is_set(tmp_path: Path) -> None:
    config = from_environ(
        {
            "HALTLINE_HOME": str(tmp_path),
            "HALTLINE_MODEL": "/models/Tiny.Q4_1.gguf",
            "HALTLINE_MAX_RUNNING": "3",
            "HALTLINE_STEP_TOKENS": "64",
            "HALTLINE_STEP_DELAY": "0.5",
            "HALTLINE_DTYPE": "float32",
            "HALTLINE_REPLICA": "gpu-7",
            "HALTLINE_BROKER_URL": "unix://:pw@/run/b.sock?db=0",
            "HALTLINE_PARENT_PID": " 12 ",
            "HALTLINE_GRACE": "",
        }
    )
    assert config.served_name == "Tiny.Q4_1"
    assert (config.engine.max_running, config.engine.step_tokens) == (3, 64)
    assert (config.step_delay, config.dtype, config.parent_pid) == (0.5, "float32", 12)
    assert config.broker_url == "redis+socket://:pw@/run/b.sock?virtual_host=0"
    assert config.bus_url.endswith("/gpu-7.sock")


def test_it_takes_the_secret_that_the_web_processes_made(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "bus").write_text("kept\n")
    assert from_environ({"HALTLINE_HOME": str(tmp_path)}).bus_secret == "kept"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HALTLINE_MAX_RUNNING", "0"),
        ("HALTLINE_MAX_RUNNING", "many"),
        ("HALTLINE_MAX_QUEUED", "-1"),
        ("HALTLINE_KV_TOKENS", "1.5"),
        ("HALTLINE_DTYPE", "float8"),
        ("HALTLINE_DEVICE", "tpu"),
        ("HALTLINE_DEVICE", "cuda:"),
        ("HALTLINE_MAX_MODEL_LEN", "0"),
        ("HALTLINE_KV_TOKENS", "3"),
        ("HALTLINE_HOME", "~nobody-of-that-name/x"),
        ("HALTLINE_STEP_DELAY", "nan"),
        ("HALTLINE_GRACE", "-1"),
        ("HALTLINE_BROKER_URL", "amqp://x"),
        ("HALTLINE_PARENT_PID", "x"),
    ],
)
def test_it_names_the_variable_that_does_not_fit(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        from_environ({name: value})


def test_it_refuses_sizes_that_do_not_fit_each_other() -> None:
    with pytest.raises(ConfigError, match=r"HALTLINE_STEP_TOKENS \(8\)"):
        from_environ({"HALTLINE_MAX_RUNNING": "64", "HALTLINE_STEP_TOKENS": "8"})


@pytest.mark.parametrize("url", ["http://x", "unix:rel", "tcp://0.0.0.0:7000", "tls://h"])
def test_it_refuses_a_bus_that_is_none_or_open_to_all(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="HALTLINE_BUS"):
        check_bus(from_environ({"HALTLINE_HOME": str(tmp_path), "HALTLINE_BUS_URL": url}))


def test_it_ends_with_2_for_a_bad_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HALTLINE_KV_TOKENS", "lots")
    assert entry.main() == 2
    assert "HALTLINE_KV_TOKENS" in capsys.readouterr().err


def test_it_checks_the_settings_and_loads_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HALTLINE_HOME", str(tmp_path))
    assert entry.main("--check") == 0, "the model is not here, and not asked for"
    monkeypatch.setenv("HALTLINE_STEP_TOKENS", "none")
    assert entry.main("--check") == 2
    assert capsys.readouterr().err.startswith("error: HALTLINE_STEP_TOKENS must be")


def test_it_ends_with_1_where_the_model_is_not_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HALTLINE_HOME", str(tmp_path))
    assert entry.main() == 1
    assert "manage.py pull" in caplog.text
