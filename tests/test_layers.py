"""Arrows point down: who may import what, read from the source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import reward_plugin

PACKAGE = Path(reward_plugin.__file__).parent
CORE = (
    *(
        "errors",
        "canonical",
        "checks",
        "criterion",
        "rubric",
        "rubric_parsing",
        "messages",
        "verdicts",
        "replies",
        "scores",
        "engines.base",
        "prompts",
    ),
    *("weighting.ahp", "weighting.weights", "weighting.judgments", "weighting.designs", "weighting.written"),
    *("graph.spaces", "graph.program", "graph.compiler", "graph.execution"),
)
CORE_PACKAGES = {"numpy", "regex", "yaml", "py3langid", "jinja2"}
ONLY_ENGINES = {"vllm", "torch", "transformers", "openai", "httpx"}
NOWHERE = {"trl", "datasets", "train", "accelerate", "peft"}
ABOVE_CORE = {"reward", "cli", "store", "jsonl", "verifier", "metrics", "experiments", "folder_store", "weigh"}
ABOVE_CORE |= {f"weighting.{name}" for name in ("asking", "questions", "icw", "rivals", "weigher")}


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
    }


@pytest.mark.parametrize("name", CORE)
def test_core_imports_only_core(name: str) -> None:
    for imported in imports(modules()[name]):
        top = imported.split(".")[0]
        if top == "reward_plugin":
            inner = imported.removeprefix("reward_plugin").removeprefix(".")

            assert not any(inner == one or inner.startswith(f"{one}.") for one in ABOVE_CORE), (
                f"{name} imports {imported}"
            )
        else:
            assert top in sys.stdlib_module_names | CORE_PACKAGES, f"{name} imports {imported}"


@pytest.mark.parametrize("name", sorted(modules()))
def test_models_are_imported_by_engines_only(name: str) -> None:
    tops = {imported.split(".")[0] for imported in imports(modules()[name])}

    assert not tops & NOWHERE
    if not name.startswith("engines"):
        assert not tops & ONLY_ENGINES


def test_import_is_light() -> None:
    """Neither the package nor the reward with an engine's name loads anything heavy."""
    code = (
        "import sys, reward_plugin\n"
        "heavy = {'torch', 'vllm', 'transformers', 'trl', 'datasets'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "assert 'numpy' not in sys.modules\n"
        "reward_plugin.RubricReward('vllm:a/b', rubric=['x'])\n"
        "reward_plugin.RubricReward('server:a/b'); reward_plugin.RubricReward('http://h/v1')\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_public_names() -> None:
    assert sorted(reward_plugin.__all__) == reward_plugin.__all__
    assert set(reward_plugin.__all__) <= set(dir(reward_plugin))
    for name in set(reward_plugin.__all__) - {"rubric_reward"}:
        assert ">>>" in getattr(reward_plugin, name).__doc__, f"{name} has no doctest"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = reward_plugin.nothing


def test_ready_instance_needs_its_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `trl grpo --reward_funcs reward_plugin.rubric_reward` imports."""
    from reward_plugin.errors import InvalidInput

    with pytest.raises(InvalidInput, match="REWARD_PLUGIN_CONFIG is not set"):
        _ = reward_plugin.rubric_reward
    (tmp_path / "r.yaml").write_text("weighting: uniform")
    monkeypatch.setenv("REWARD_PLUGIN_CONFIG", str(tmp_path / "r.yaml"))

    assert reward_plugin.rubric_reward.weighting == "uniform"
    monkeypatch.delitem(vars(reward_plugin), "rubric_reward")
