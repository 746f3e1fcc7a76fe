"""Fixtures that several test files share."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's own store."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("REWARD_PLUGIN_CONFIG", raising=False)


@pytest.fixture(scope="session")
def embedded() -> Path:
    """The embedded model's folder, made once."""
    from reward_plugin.engines.models import embedded_model

    return embedded_model(ROOT / "models" / "SmolLM2-135M-Instruct")
