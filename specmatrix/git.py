"""Git, run as a process."""

import os
import subprocess
from pathlib import Path
from typing import Final

from specmatrix.errors import ConfigError, shown, text_of

# No hook of the repository runs.
SETTINGS: Final = ("-c", "core.hooksPath=/dev/null")
# What git would take from the environment of a hook instead of the folder.
HOOK: Final = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR")


class GitFailed(ConfigError):
    """Git refused a command; the text has what it said."""


def git_environment() -> dict[str, str]:
    """This process's environment, but for what a hook that started it has set."""
    return {name: value for name, value in os.environ.items() if name not in HOOK}


def git(folder: Path, *words: str) -> str:
    """The output of a git command in a folder, without blanks at its end. GitFailed if it fails, ConfigError if it
    cannot run. Ctrl-C ends the wait, and not git in the middle of a write."""
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
    """The hash of a commit that a user named. ConfigError if the repository has none of that name."""
    try:
        return git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    except GitFailed:
        raise ConfigError(f"{shown(name)} is not a commit of {folder}") from None
