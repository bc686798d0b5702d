"""`specmatrix bisect`: the first commit at which a cell is red, by `git bisect run` in a worktree of its own.

Each commit is run by this module as a process, `python -m specmatrix.ci.commands.bisect FOLDER`, whose exit status is
the one that git expects: 0 for a good commit, 1 for a bad one, SKIP for one that does not run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from specmatrix.engine.temp_dir import TempDir
from specmatrix.errors import ConfigError, shown
from specmatrix.git import SETTINGS, GitFailed, commit_of, git, git_environment
from specmatrix.matrix.cells.tiers import check_seed
from specmatrix.matrix.cells.tiers import tier as find_tier
from specmatrix.matrix.subjects.child_process import ChildProcess
from specmatrix.reports.repro import as_called
from specmatrix.reports.schema import ReportError, is_red
from specmatrix.reports.store import load
from specmatrix.reports.wording import count, failure, shorten
from specmatrix.stopping import deferred

GOOD: Final = 0
BAD: Final = 1
SKIP: Final = 125
WORDS: Final = {GOOD: "good", BAD: "bad", SKIP: "skipped"}
# Between two looks for commits that were tried.
TICK_SECONDS: Final = 0.2
MOST: Final = 240
OPTIONS_FILE: Final = "options.json"
LOG_FILE: Final = "log.jsonl"


class Options(Struct, frozen=True):
    """What every commit is run with. infra: a cell without a verdict is bad too, as it has none at the bad commit."""

    cells: str
    tier: str
    stage: str
    seed: int
    subject: str
    infra: bool = False


class TriedCommit(Struct, frozen=True):
    """A commit that was tried: its exit status, and the red cells and their commands, or why it did not run."""

    commit: str
    status: int
    lines: tuple[str, ...]
    infra: bool = False


def main_bisect(good: str, bad: str, cells: str, tier: str, stage: str, seed: int, subject: str) -> int:
    """Print the first bad commit with its red cell; 0 if it was found, 1 if commits that do not run hide it.

    ConfigError outside of a repository, for an unknown commit, and if `good` is not good or `bad` not bad.
    """
    find_tier(tier)
    check_seed(seed)
    root = Path(git(Path.cwd(), "rev-parse", "--show-toplevel"))
    first, last = commit_of(root, good), commit_of(root, bad)
    if first == last or not _holds(root, "merge-base", "--is-ancestor", first, last):
        raise ConfigError(f"{shown(good)} is not an ancestor of {shown(bad)}; give an older good commit")
    with TempDir("bisect") as folder, _worktree(root, folder / "tree", last) as tree:
        options = Options(cells, tier, stage, seed, subject)
        _write(folder, options)
        end = _try(tree, folder)
        if end.infra:
            _write(folder, msgspec.structs.replace(options, infra=True))
        elif end.status != BAD:
            raise ConfigError(f"{shown(bad)} is not bad: {_why(end)}")
        git(tree, "checkout", "--quiet", "--detach", first)
        begin = _try(tree, folder)
        if begin.status != GOOD:
            raise ConfigError(f"{shown(good)} is not good: {_why(begin)}")
        return _search(tree, folder, first, last)


def _search(tree: Path, folder: Path, first: str, last: str) -> int:
    git(tree, "bisect", "start", last, first)
    status = _show(tree, folder, ["git", *SETTINGS, "bisect", "run", *_command(folder)])
    skipped = git(tree, "for-each-ref", "--format=%(objectname)", "refs/bisect/skip-*").split()
    found = git(tree, "rev-parse", "refs/bisect/bad")
    if status:
        goods = git(tree, "for-each-ref", "--format=^%(objectname)", "refs/bisect/good-*").split()
        left = git(tree, "rev-list", found, *goods).split()
        if not skipped:
            raise ConfigError(f"git bisect failed with exit status {status}; see `git bisect` in {tree}")
        print(f"the first bad commit is one of {count(len(left), 'commit')}, since the others do not run:")
        print("\n".join(_named(tree, commit) for commit in left))
        return 1
    print(f"first bad commit: {_named(tree, found)}")
    steps = {step.commit: step for step in _steps(folder)}
    print("\n".join(steps[found].lines))
    return 0


def _try(tree: Path, folder: Path) -> TriedCommit:
    """Run the commit that the worktree holds."""
    _show(tree, folder, _command(folder))
    steps = _steps(folder)
    if not steps or steps[-1].commit != git(tree, "rev-parse", "HEAD"):
        raise ConfigError("the process that runs a commit ended without a result; run the command again")
    return steps[-1]


def _show(tree: Path, folder: Path, command: list[str]) -> int:
    """Run a command in the worktree, and print a line for each commit that it tried; its exit status."""
    shown_steps = len(_steps(folder))
    process = ChildProcess(command, tree, _environment())
    try:
        status = None
        while status is None:
            status = process.wait(TICK_SECONDS)
            for step in (steps := _steps(folder))[shown_steps:]:
                print(f"{WORDS[step.status]}: {_named(tree, step.commit)}", file=sys.stderr, flush=True)
            shown_steps = len(steps)
        return status
    finally:
        with deferred():
            process.stop()


def _why(step: TriedCommit) -> str:
    return step.lines[0] if step.lines else "no cell is red"


def _command(folder: Path) -> list[str]:
    # -P: otherwise the commit's own package, in the current folder, would be imported.
    return [sys.executable, "-P", "-m", "specmatrix.ci.commands.bisect", str(folder)]


def _write(folder: Path, options: Options) -> None:
    (folder / OPTIONS_FILE).write_bytes(msgspec.json.encode(options))


def _steps(folder: Path) -> list[TriedCommit]:
    path = folder / LOG_FILE
    text = path.read_bytes() if path.exists() else b""
    return [
        msgspec.json.decode(line, type=TriedCommit) for line in text.splitlines(keepends=True) if line.endswith(b"\n")
    ]


@contextmanager
def _worktree(root: Path, tree: Path, commit: str) -> Iterator[Path]:
    """A worktree of the repository, which is removed whatever happens; bisecting in it leaves `root` as it is."""
    try:
        git(root, "worktree", "add", "--quiet", "--detach", str(tree), commit)
        yield tree
    finally:
        with deferred():
            if tree.exists():
                git(root, "worktree", "remove", "--force", "--force", str(tree))
            git(root, "worktree", "prune")


def _environment(tree: Path | None = None) -> dict[str, str]:
    """The environment of processes in another folder; tree: of those that import the commit there."""
    paths = [str(Path(path).absolute()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if tree is not None:
        paths.insert(0, str(tree / ".lint" if (tree / ".lint").is_dir() else tree))
    # Of two commits with equal times and sizes, the second would run the byte code of the first.
    return {**git_environment(), "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}


def _holds(folder: Path, *words: str) -> bool:
    try:
        git(folder, *words)
    except GitFailed:
        return False
    return True


def _named(tree: Path, commit: str) -> str:
    return git(tree, "log", "-1", "--format=%h %s (%an, %as)", commit)


def run_commit(folder: Path, tree: Path, environment: Mapping[str, str]) -> TriedCommit:
    """Run the cells with the code of a worktree and judge their report."""
    options = msgspec.json.decode((folder / OPTIONS_FILE).read_bytes(), type=Options)
    commit = git(tree, "rev-parse", "HEAD")
    out = folder / commit
    words = ["run", "--cells", options.cells, "--tier", options.tier, "--stage", options.stage]
    words += ["--seed", str(options.seed), "--workers", "1"]
    words += [] if options.subject == "reference" else ["--subject", options.subject]
    command = [sys.executable, "-P", "-m", "specmatrix", *words, "--out", str(out)]
    done = subprocess.run(command, cwd=tree, env=environment, stdin=subprocess.DEVNULL, capture_output=True)
    try:
        report = load(out)
    except ReportError:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"]
        return TriedCommit(commit, SKIP, (f"it does not run: {shorten(said[-1], MOST)}",))
    red = [cell for cell in report if is_red(cell, report.header.created)]
    lines = [
        line
        for cell in red
        for line in (f"{cell.state} {cell.id}: {shorten(failure(cell), MOST)}", f"  {as_called(cell.repro)}")
    ]
    judged = [cell for cell in red if cell.state != "INFRA"]
    if judged or (red and options.infra):
        return TriedCommit(commit, BAD, tuple(lines))
    if red or all(cell.state == "UNSUPPORTED" for cell in report):
        return TriedCommit(commit, SKIP, tuple(lines or ("it supports none of the cells",)), infra=bool(red))
    return TriedCommit(commit, GOOD, ())


def main(folder: str) -> int:
    """Run the commit of the current worktree, note it in the log, and return its exit status."""
    tree = Path.cwd()
    step = run_commit(Path(folder), tree, _environment(tree))
    with (Path(folder) / LOG_FILE).open("ab") as log:
        log.write(msgspec.json.encode(step) + b"\n")
    return step.status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
