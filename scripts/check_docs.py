"""Check what the documents promise: doctests, links, commands, examples, configs, and what must not stand in a file.

    python scripts/check_docs.py

Lists every fault and exits with 1, or ends with one line that says what was counted.
"""

import doctest
import importlib
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import yaml

import reward_plugin
from reward_plugin import Rubric, jsonl
from reward_plugin.errors import InvalidInput

README = Path("README.md")
HEAVY = tuple(f"reward_plugin.engines.{name}" for name in ("http", "server", "transformers", "vllm"))
COMMAND = re.compile(r"^(?:#\s*)?(?:\.venv/bin/)?(\./scripts/|reward-plugin |python train/)(\S+)", re.MULTILINE)
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)[^)]*\)|(?:src|href)=\"([^\"]+)\"|^\[[^\]]+\]:\s+(\S+)", re.MULTILINE)
# A path of one machine, the host of a package registry
FORBIDDEN = re.compile(rb"(?<![\w.~-])/(?:(?:home|Users|work)/\w|root\b)|\bpyp[i]\.\w|pythonhoste[d]\.", re.IGNORECASE)


def main() -> int:
    """Run every check in the root of the checkout; return the exit status."""
    os.chdir(Path(__file__).resolve().parents[1])
    faults: list[str] = []
    counts = {
        "doctests": run_doctests(faults),
        "links": check_links(faults),
        "commands and examples": check_readme(faults),
        "configs": check_configs(faults),
        "tracked files": check_tracked(faults),
    }
    print("\n".join(faults) or "ok: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    return 1 if faults else 0


def run_doctests(faults: list[str]) -> int:
    """Run the doctests of every module; an engine whose package is not installed is passed over."""
    runner = doctest.DocTestRunner()
    names = [module.name for module in pkgutil.walk_packages(reward_plugin.__path__, "reward_plugin.")]
    for name in ["reward_plugin", *names]:
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            if name not in HEAVY:
                faults.append(f"{name}: cannot be imported: {error}")
            continue
        for test in doctest.DocTestFinder().find(module, name):
            report: list[str] = []
            if runner.run(test, out=report.append).failed:
                faults.append(f"doctest of {test.name}:\n{''.join(report).rstrip()}")
    return runner.tries


def check_links(faults: list[str]) -> int:
    """Check that every relative link points at a file, and every anchor at one of its headings."""
    count = 0
    for document in (README, Path("CONTRIBUTING.md"), Path("CHANGELOG.md"), *sorted(Path("docs").glob("*.md"))):
        if not document.is_file():
            faults.append(f"{document}: no such file")
            continue
        for groups in LINK.findall(prose(document)):
            link = "".join(groups)
            if re.match(r"[a-z]+:", link):
                continue
            count += 1
            path, _, anchor = link.partition("#")
            target = document.parent / path if path else document
            if not target.exists():
                faults.append(f"{document}: link to {path}: no such file")
            elif anchor and (target.suffix != ".md" or anchor not in anchors(target)):
                faults.append(f"{document}: link to {link}: no such heading")
    return count


def prose(document: Path) -> str:
    """Return a document without its code blocks."""
    return FENCED.sub("", document.read_text(encoding="utf-8"))


def anchors(document: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a document."""
    headings = re.findall(r"^#{1,6}\s+(.+)$", prose(document), re.MULTILINE)
    headings = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


def check_readme(faults: list[str]) -> int:
    """Check the commands of the README, compile its Python, and run each example that needs no trainer."""
    count = 0
    text = README.read_text(encoding="utf-8") if README.is_file() else ""
    for number, (language, block) in enumerate(FENCED.findall(text), start=1):
        place = f"{README}, code block {number}"
        if language == "bash":
            commands = COMMAND.findall(block)
            count += len(commands)
            faults += [fault for command in commands for fault in command_faults(place, *command)]
        elif language == "python":
            count += 1
            faults += example_faults(place, block)
    return count


def command_faults(place: str, program: str, name: str) -> Iterator[str]:
    """Yield what is wrong with a command: a script that is not there, a subcommand that nobody knows."""
    if program == "./scripts/":
        if not os.access(Path("scripts", name), os.X_OK):
            yield f"{place}: scripts/{name} is not an executable file"
    elif program == "python train/":
        if not Path("train", name).is_file():
            yield f"{place}: train/{name}: no such file"
    elif not name.startswith("-") and not re.search(rf"^\W*{re.escape(name)}\s", subcommands(), re.MULTILINE):
        yield f"{place}: reward-plugin has no command {name!r}"


@cache
def subcommands() -> str:
    """Return what `reward-plugin --help` says about its commands."""
    command = [str(Path(sys.executable).with_name("reward-plugin")), "--help"]
    return subprocess.check_output(command, text=True).partition("Commands")[2]


def example_faults(place: str, code: str) -> Iterator[str]:
    """Yield what goes wrong when an example runs in an empty folder; one that needs a trainer is only compiled."""
    if "GRPOTrainer" in code:
        code = f"compile({code!r}, {place!r}, 'exec')"
    with tempfile.TemporaryDirectory() as folder:
        command = ["env", f"XDG_CACHE_HOME={folder}", sys.executable, "-c", code]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        yield f"{place}:\n{done.stderr.rstrip()}"


def check_configs(faults: list[str]) -> int:
    """Check every YAML file of configs/ for its launch command and the files it names, every JSONL line for its rubric."""
    files = [path for path in sorted(Path("configs").rglob("*")) if path.suffix in (".yaml", ".jsonl")]
    for path in files:
        try:
            faults += yaml_faults(path) if path.suffix == ".yaml" else jsonl_faults(path)
        except (yaml.YAMLError, InvalidInput) as error:
            faults.append(f"{path}: {error}")
    return len(files)


def yaml_faults(path: Path) -> Iterator[str]:
    """Yield what is wrong with a YAML config. A file under runs/ is one that a run makes: it need not exist."""
    text = path.read_text(encoding="utf-8")
    commands = COMMAND.findall("".join(re.findall(r"\A(?:#.*\n)*", text)))
    if not commands:
        yield f"{path}: the comment at its top has no launch command"
    for command in commands:
        yield from command_faults(str(path), *command)
    values = yaml.safe_load(text)
    if not isinstance(values, dict):
        yield f"{path}: expected a mapping"
        return
    for key in ("rubric", "dataset", "reward"):
        named = str(values.get(key))
        is_file = named.endswith((".yaml", ".yml", ".json", ".jsonl"))
        if is_file and not named.startswith("runs/") and not Path(named).is_file():
            yield f"{path}: {key}: {named}: no such file"


def jsonl_faults(path: Path) -> Iterator[str]:
    """Yield each line of a JSONL file that has no rubric, or a malformed one."""
    for number, row in jsonl.read(path):
        try:
            Rubric.parse(row.get("rubric") if isinstance(row, dict) else row)
        except InvalidInput as error:
            yield f"{path}, line {number}: {error}"


def check_tracked(faults: list[str]) -> int:
    """Check that no tracked file names a folder of one machine or the host of a package registry."""
    listed = subprocess.check_output(["git", "ls-files", "-z"], text=True)
    files = [Path(name) for name in listed.split("\0") if Path(name).is_file()]
    for path in files:
        content = path.read_bytes()
        for match in FORBIDDEN.finditer(content):
            line = content.count(b"\n", 0, match.start()) + 1
            faults.append(f"{path}, line {line}: has no place in the project: {match.group().decode()}")
    return len(files)


if __name__ == "__main__":
    sys.exit(main())
