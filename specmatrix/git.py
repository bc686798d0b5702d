"""Runs git commands."""

import os
import subprocess
from pathlib import Path
from typing import Final

from specmatrix.errors import ConfigError, shown, text_of

# Disables the repository's hooks.
SETTINGS: Final = ("-c", "core.hooksPath=/dev/null")
# Variables that a git hook sets, which would take precedence over the folder.
HOOK: Final = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR")


class GitFailed(ConfigError):
    """A git command failed; the text contains its stderr."""


def git_environment() -> dict[str, str]:
    """This process's environment without the variables that a git hook sets."""
    return {name: value for name, value in os.environ.items() if name not in HOOK}


def git(folder: Path, *words: str) -> str:
    """Run a git command in a folder and return its stdout without trailing whitespace.

    GitFailed if it fails, ConfigError if it cannot run. Ctrl-C is not passed to git, which may be writing.
    """
    try:
        done = subprocess.run(
            ["git", *SETTINGS, *words], cwd=folder, env=git_environment(), capture_output=True, start_new_session=True
        )
    except OSError as error:
        if isinstance(error, FileNotFoundError) and error.filename == "git":
            raise ConfigError("git is not installed") from None
        raise ConfigError(f"git cannot run in {folder}: {error.strerror}") from None
    if done.returncode:
        said = text_of(done.stderr.decode(errors="replace").strip()) or f"exit status {done.returncode}"
        raise GitFailed(f"git {words[0]} failed in {folder}: {said}")
    return done.stdout.decode(errors="replace").rstrip()


def commit_of(folder: Path, name: str) -> str:
    """Resolve a commit name to its hash. ConfigError if the repository has no such commit."""
    try:
        return git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    except GitFailed:
        raise ConfigError(f"{shown(name)} is not a commit of {folder}") from None
