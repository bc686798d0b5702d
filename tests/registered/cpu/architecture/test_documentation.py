"""The documentation holds: its commands parse and quick ones run, links lead somewhere, Python blocks work."""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from specmatrix import HOME
from specmatrix.cli import COMMANDS, command_line, main
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.tiers import TIERS
from specmatrix.matrix.cli.cells import explain
from specmatrix.matrix.cli.flags import FLAGS, flags_of
from specmatrix.matrix.cover.lockfile import STAGES, stage_cells
from specmatrix.matrix.cover.selection import WEIGHTS, select
from specmatrix.matrix.faults.fault import catalogue
from tests.support.command_words import parsed

README = HOME / "README.md"
GUIDES = [*sorted(HOME.glob("*.md")), *sorted(HOME.glob("docs/*.md")), *sorted(HOME.glob("tests/*.md"))]
PAGES = [*GUIDES, *sorted(HOME.glob("reports/*/*.md"))]
# Their Python blocks read reports that other blocks of the page make; the tests of reports run them.
READS_REPORTS = {"report-schema.md"}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^()\s]+)\)")
SPAN = re.compile(r"`([^`\n]+)`")
INNER = re.compile(r"\$\(([^)]*)\)")
FOLDERS = r"\.ci|\.github|benchmarks|ci|docs|engine|examples|kernels|matrix|reports|specmatrix|tests|tools"
ROOM = re.compile(rf"(?:{FOLDERS})/[\w./-]*")
# Programs of other projects.
FOREIGN = {"curl", "git", "jq", "kubectl", "mktemp", "npm", "playwright", "ray", "vllm"}


class Shown(NamedTuple):
    """A command of a page. said: the lines of output that the page shows for it."""

    page: str
    text: str
    said: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """Its words without environment settings; a nested command is one word."""
        words = shlex.split(INNER.sub("INNER", self.text), comments=True)
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
            words.pop(0)
        return words

    def of_ours(self) -> list[str] | None:
        """The words after `specmatrix`, None for any other program."""
        words = self.words
        if words[:1] == ["specmatrix"]:
            return words[1:]
        return words[3:] if words[1:3] == ["-m", "specmatrix"] else None


def name(page: Path) -> str:
    return page.relative_to(HOME).as_posix()


def blocks(page: Path, *languages: str) -> list[str]:
    return [text for language, text in BLOCK.findall(page.read_text(encoding="utf-8")) if language in languages]


def shown(page: Path) -> list[Shown]:
    """Every command of a page: lines of `sh` blocks, and what follows `$ ` in `console` blocks."""
    found: list[Shown] = []
    for text in blocks(page, "sh"):
        lines = text.replace("\\\n", " ").splitlines()
        found += [Shown(name(page), line.strip()) for line in lines if line.strip() and not line.startswith("#")]
    for text in blocks(page, "console"):
        for part in re.split(r"^\$ ", text.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
            line, *said = part.splitlines()
            found.append(Shown(name(page), line, tuple(row for row in said if row.strip())))
    return found + [Shown(name(page), inner) for one in found for inner in INNER.findall(one.text)]


SHOWN = [one for page in GUIDES for one in shown(page)]
OURS = [one for one in SHOWN if one.of_ours() is not None]
EACH = pytest.mark.parametrize("page", PAGES, ids=name)


def makefile() -> str:
    return (HOME / "Makefile").read_text(encoding="utf-8")


def check_make(words: list[str]) -> None:
    targets, settings = [w for w in words if "=" not in w], [w.partition("=")[0] for w in words if "=" in w]
    assert all(re.search(rf"^{target}:", makefile(), re.MULTILINE) for target in targets)
    assert all(re.search(rf"^{setting} \?=", makefile(), re.MULTILINE) for setting in settings)


def check_pytest(words: list[str]) -> None:
    for path, _, test in (word.partition("::") for word in words if word.startswith("tests/")):
        assert (HOME / path).exists(), path
        assert f"def {test}" in (HOME / path).read_text(encoding="utf-8") if test else True, test


def check_pip(words: list[str]) -> None:
    project = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extras in re.findall(r"\.\[(.*?)\]", " ".join(words)):
        assert set(extras.split(",")) <= set(project["optional-dependencies"])


def check_module(words: list[str]) -> None:
    found = importlib.util.find_spec(words[0])
    assert found is not None and found.origin is not None, words[0]
    place = Path(found.origin)
    source = (place.with_name("__main__.py") if place.name == "__init__.py" else place).read_text(encoding="utf-8")
    assert all(f'"{word}"' in source for word in words if word.startswith("--"))


def check(words: list[str]) -> None:
    """Fails if a command of another program names something that does not exist."""
    program, *rest = words
    assert [word for word in rest if ROOM.fullmatch(word) and not (HOME / word).exists()] == []
    of_subject = program.startswith("~/.cache/specmatrix/")  # the Python of another engine
    if program in FOREIGN or of_subject or (HOME / program).is_file():
        return
    if program == "make":
        return check_make(rest)
    assert program in ("python", "python3", "pytest"), f"{program} is no known program"
    checks: dict[str, Callable[[list[str]], None]] = {"pytest": check_pytest, "pip": check_pip}
    if program == "pytest":
        return check_pytest(rest)
    if rest[0] == "-m":
        return checks.get(rest[1], lambda given: check_module([rest[1], *given]))(rest[2:])
    assert (HOME / rest[0]).is_file(), rest[0]


@pytest.mark.parametrize("one", dict.fromkeys(one for one in SHOWN if one not in OURS), ids=lambda one: one.text)
def test_other_commands_name_what_exists(one: Shown):
    check(one.words)


@pytest.mark.parametrize("one", dict.fromkeys(OURS), ids=lambda one: one.text)
def test_commands_parse_and_name_what_exists(one: Shown, monkeypatch):
    words = one.of_ours() or []
    # What a plug-in registers stays; `behaviour/matrix/test_plug_in_files.py` runs these commands.
    monkeypatch.setattr("specmatrix.matrix.run.plugins.load_plugins", lambda files: None)
    names, options = parsed(words)
    if options.get("plugin") or options.get("_plugin"):
        assert all((HOME / word).is_file() for word in words if word.endswith(".py"))
        return
    if names[0] in ("generate", "contract"):
        flags_of([*(options.get("question") or options.get("algorithm") or ())])  # ConfigError on an unknown flag
        assert all((HOME / word).is_file() for word in words if word.endswith(".py"))
    if "tier" in options:
        assert {*options["tier"].split(",")} <= {tier.name for tier in TIERS}
    if options.get("stage"):
        assert options["stage"] in (WEIGHTS,) if names[0] == "accuracy" else (*STAGES, "product", "speed")
    if options.get("cells"):
        texts = options["cells"] if isinstance(options["cells"], list) else [options["cells"]]
        assert all(select(options.get("stage", "nightly"), text, options.get("limit")) for text in texts)
    if names[0] == "faults":
        assert set(options["names"] or ()) <= {fault.id for fault in catalogue()}
    if names[0] == "explain":
        assert explain(options["cell"], json_=True) == 2 * refused(one)


def refused(one: Shown) -> bool:
    return any(line.startswith(("specmatrix: ", "refused by ")) for line in one.said)


def quick(one: Shown) -> bool:
    """Whether a command ends within seconds on a CPU and writes no file."""
    words = one.of_ours() or []
    head = " ".join(words[:2])
    if words[:1] == ["generate"]:
        return bool(one.said)  # a model is loaded for each, so only where a page shows the answer
    if words[:1] in (["run"], ["accuracy"]):
        return any(line.startswith("specmatrix: ") for line in one.said)
    if head == "lock --check":
        return bool(one.said) and "--full" not in words  # seconds for each
    listed = head in ("zoo list", "checkpoints list")
    return listed or words[:1] == ["explain"] or "--list" in words or "--schedules" in words


def masked(line: str) -> str:
    """A line with its numbers masked, as they depend on the machine's speed."""
    return re.sub(r"\d[\d,.]*", "#", line)


@pytest.mark.parametrize("one", dict.fromkeys(filter(quick, OURS)), ids=lambda one: one.text)
def test_quick_commands_print_what_the_page_shows(one: Shown, capfd, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.chdir(HOME)
    words = one.of_ours() or []
    assert main(words) == 2 * refused(one)
    found = capfd.readouterr()
    lines = [line.rstrip() for line in (found.out + found.err).splitlines()]
    if words[0] == "generate":
        assert set(map(masked, one.said)) <= set(map(masked, lines))
    else:
        assert [line for line in one.said if line.rstrip() not in lines] == []


def test_there_are_commands_of_each_kind():
    assert len(OURS) > 50 and len(list(filter(quick, OURS))) > 10


def calls(text: str) -> list[str]:
    """Calls in a page's running text and tables; words in capitals are placeholders."""
    spans = SPAN.findall(BLOCK.sub("", text))
    return [span.replace("\\|", "|").partition(" ")[2] for span in spans if span.startswith("specmatrix ")]


def found(call: str) -> tuple[list[str], set[str]]:
    """The names of the command in a call, and the options that it takes."""
    node, names, words = command_line(), [], re.findall(r"[\w-]+", call)
    while words and words[0] in getattr(node, "commands", {}):
        names.append(words[0])
        node = node.commands[words.pop(0)]
    return names, {option for parameter in node.params for option in parameter.opts}


def test_a_page_has_every_command_in_the_order_of_help():
    page = HOME / "docs" / "running.md"
    table = page.read_text(encoding="utf-8").partition("\n## All commands\n")[2]
    listed = list(dict.fromkeys(found(call)[0][0] for call in calls(table) if found(call)[0]))
    assert listed == [word for word in COMMANDS if " " not in word]


@pytest.mark.parametrize(
    "call", dict.fromkeys(call for page in GUIDES for call in calls(page.read_text(encoding="utf-8")))
)
def test_commands_and_options_in_the_text_exist(call: str):
    names, options = found(call)
    assert names or call == "-h" or call in options, f"specmatrix {call}"
    assert set(re.findall(r"--[a-z][\w-]*", call)) <= options | {"--help"} | set(FLAGS)


def anchors(page: Path) -> set[str]:
    """The ids that GitHub gives the headings of a page."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@EACH
def test_links_lead_somewhere(page: Path):
    for target in LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), f"{name(page)} links to {target}"
        assert not anchor or anchor in anchors(file), f"{name(page)} links to {target}"


@pytest.mark.parametrize("page", GUIDES, ids=name)
def test_files_that_the_text_names_exist(page: Path):
    spans = SPAN.findall(BLOCK.sub("", page.read_text(encoding="utf-8")))
    for span in spans:
        path, _, test = span.partition("::")
        if ROOM.fullmatch(path) and "NAME" not in path:
            assert (HOME / path).exists(), f"{name(page)} names {span}"
            assert not test or f"def {test}(" in (HOME / path).read_text(encoding="utf-8"), span


def test_incidents_name_locked_cells_and_the_faults_and_gates_of_the_catalogue():
    known, locked = {fault.id: fault for fault in catalogue()}, set(stage_cells("nightly"))
    lines = (HOME / "docs" / "incidents.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| `")]
    assert len(rows) == 5
    for cells, faults, gates in rows:
        assert {Cell.from_id(span) for span in SPAN.findall(cells) if "/" not in span} <= locked
        expected = {gate for span in SPAN.findall(faults) for gate in known[span].expected}
        assert set(gates.split(", ")) == expected


PYTHON = [(page, text) for page in GUIDES for text in blocks(page, "python")]


@pytest.mark.parametrize(("page", "text"), PYTHON, ids=[name(page) for page, _ in PYTHON])
def test_python_blocks_work(page: Path, text: str):
    code = compile(text, name(page), "exec")
    if page.name not in READS_REPORTS:
        exec(code, {"__name__": "example"})
