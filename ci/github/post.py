"""Posts a review to a pull request: one comment that each run updates, and a check run. Standard library only.

It runs in a `workflow_run`, with a token that may write, and reads files that a pull request's code may have made. So
it takes the pull request's number from GitHub and never from a file, and posts text only.

    GITHUB_TOKEN=... python ci/github/post.py --repository owner/name --sha SHA --head owner:branch OUT
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

MARKER: Final = "<!-- specmatrix review -->"
MAX_BYTES: Final = 65_000
TIMEOUT: Final = 30.0
PAGE: Final = 100
MAX_PAGES: Final = 30


class PostError(Exception):
    """The review could not be posted; one sentence."""


class GitHub:
    """GitHub's REST API for one repository."""

    def __init__(self, repository: str, token: str, address: str) -> None:
        self.repository: Final = repository
        self._token = token
        self._address = address.rstrip("/")

    def call(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401  # JSON
        """The decoded answer. PostError if GitHub refuses or cannot be reached."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._address}/repos/{self.repository}/{path}", data, method=method)
        request.add_header("Authorization", f"Bearer {self._token}")
        request.add_header("Accept", "application/vnd.github+json")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            said = error.read(400).decode(errors="replace")
            raise PostError(f"GitHub answered {method} {path} with {error.code}: {' '.join(said.split())}") from error
        except (OSError, ValueError) as error:
            raise PostError(f"{method} {path} failed: {error}") from error

    def pull(self, sha: str, head: str) -> int | None:
        """The open pull request whose branch `owner:branch` is at `sha`; None if there is none, or if the branch has
        moved on."""
        found = self.call("GET", f"pulls?state=open&head={quote(head)}&per_page={PAGE}")
        return next((int(pull["number"]) for pull in found if pull["head"]["sha"] == sha), None)

    def comment(self, pull: int, text: str) -> str:
        """Update the bot's comment that begins with the marker, or create it."""
        for page in range(1, MAX_PAGES + 1):
            found = self.call("GET", f"issues/{pull}/comments?per_page={PAGE}&page={page}")
            for each in found:
                # A deleted account is null.
                if (each["user"] or {}).get("type") == "Bot" and str(each["body"]).startswith(MARKER):
                    self.call("PATCH", f"issues/comments/{int(each['id'])}", {"body": text})
                    return "updated"
            if len(found) < PAGE:
                break
        self.call("POST", f"issues/{pull}/comments", {"body": text})
        return "written"


def main(words: list[str] | None = None) -> int:
    """0 if everything was posted or there is nothing to post to, 2 with one line otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "out", type=Path, help="folder of comment.md and check.json, as `specmatrix review` writes them"
    )
    parser.add_argument("--repository", required=True, help="owner/name")
    parser.add_argument("--sha", required=True, help="the commit that ran")
    parser.add_argument("--head", required=True, help="its branch, as owner:branch")
    options = parser.parse_args(words)
    try:
        print(post(options.out, options.repository, options.sha, options.head))
    except PostError as error:
        print(f"post: {error}", file=sys.stderr)
        return 2
    return 0


def post(out: Path, repository: str, sha: str, head: str) -> str:
    """Post the review; returns a description of what was posted. PostError on failure."""
    token = os.environ.get("GITHUB_TOKEN")
    if not token:
        raise PostError("GITHUB_TOKEN is not set; the workflow passes it to this step alone")
    address = os.environ.get("GITHUB_API_URL", "https://api.github.com")
    if urlsplit(address).scheme not in ("http", "https"):
        raise PostError(f"GITHUB_API_URL must be an http address, got {address!r}")
    try:
        text = (out / "comment.md").read_text(encoding="utf-8")
        check = json.loads((out / "check.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PostError(f"cannot read the review in {out}: {error}") from error
    if not text.startswith(MARKER) or len(text.encode()) > MAX_BYTES:
        raise PostError(f"{out / 'comment.md'} must begin with {MARKER} and have at most {MAX_BYTES:,} bytes")
    github = GitHub(repository, token, address)
    github.call("POST", "check-runs", {**check, "head_sha": sha})
    pull = github.pull(sha, head)
    if pull is None:
        return f"check run posted; no open pull request of {head} is at {sha}"
    return f"check run posted; comment of #{pull} {github.comment(pull, text)}"


if __name__ == "__main__":
    sys.exit(main())
