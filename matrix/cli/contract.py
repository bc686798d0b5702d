"""`specmatrix contract`: the conformance suite for draft algorithms, in a process that must return a verdict."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from textwrap import indent
from time import monotonic
from typing import Any, Final

from specmatrix.child_process import ChildProcess
from specmatrix.errors import ConfigError
from specmatrix.files import opened
from specmatrix.matrix.cli.flags import flags_of
from specmatrix.reports.render.progress import awaited
from specmatrix.reports.wording import count
from specmatrix.stopping import Stopped
from specmatrix.temp_dir import TempDir

CHILD: Final = "specmatrix.matrix.conformance.child"
POLL_SECONDS: Final = 0.05
OUTPUT_TAIL: Final = 2000  # characters


class NoVerdictError(Exception):
    """The process ended or hung before its verdict; the message says how."""


def contract(algorithm: list[str] | None = None, timeout: float = 120.0, json_: bool = False) -> int:
    """Run the suite for the algorithms of a file, or for one by name; 0 if every engine start conforms.

    algorithm: the file or the name, and engine flags as typed. ConfigError on an invalid one.
    """
    word, asked = _parsed(algorithm or [])

    def say(text: str) -> None:
        if not json_:
            print(text, flush=True)

    algorithms: list[tuple[str, list[dict[str, Any]]]] = []
    reason = None
    with TempDir("contract") as folder:
        file = folder / "results.jsonl"
        file.touch()
        # -P: a file of the current folder must not replace an installed module.
        process = ChildProcess([sys.executable, "-P", "-u", "-m", CHILD, str(file), word, json.dumps(asked)])
        try:
            starts = awaited(results(process, file, timeout), f"testing {word}")
            for name, group in groupby(starts, lambda result: str(result["algorithm"])):
                done: list[dict[str, Any]] = []
                algorithms.append((name, done))
                for result in group:
                    done.append(result)
                    say(_line(result))
                say(_sum(name, done))
        except Stopped as stop:
            # The signal's sender is unknown, and may be the code under test.
            alive = process.wait(0) is None
            raise stop.saying(
                f"interrupted while {word} ran, which may have sent the signal" if alive else str(stop)
            ) from None
        except NoVerdictError as error:
            reason = str(error)
            say(f"NO VERDICT: {reason}")
        finally:
            process.stop()
    red = reason is not None or any(result["violations"] for _, done in algorithms for result in done)
    output = _printable(process.output_end(OUTPUT_TAIL)) if red else ""
    if output:
        say("\n  ".join(["end of the output:", *output.splitlines()]))
    if json_:
        shown = [_record(name, done) for name, done in algorithms]
        print(json.dumps({"schema": 2, "algorithms": shown, "no_verdict": reason, "output": output}, indent=2))
    return int(red)


def _parsed(words: list[str]) -> tuple[str, dict[str, str]]:
    names, asked = flags_of(words)
    if len(names) != 1:
        given = count(len(names), "algorithm")
        raise ConfigError(f"{given} given; give one Python file that registers algorithms, or one algorithm's name")
    if asked.get("tp_size", "1") != "1":
        raise ConfigError(
            f"tp_size must be 1 for contract, got {asked['tp_size']}; tensor parallelism is tested by cells with tp=2, "
            "4 or 8"
        )
    with suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
        opened(Path(names[0])).close()  # an unreadable file is the user's mistake, not a missing verdict
    return names[0], asked


def results(process: ChildProcess, file: Path, timeout: float) -> Iterator[dict[str, Any]]:
    """The results that the process appends to the file. ConfigError if it refuses the algorithm; NoVerdictError if it
    ends without a verdict, or gives no result for `timeout` seconds."""
    with file.open("rb") as lines:
        unread, heard = b"", monotonic()
        while True:
            status = process.wait(POLL_SECONDS)
            *whole, unread = (unread + lines.read()).split(b"\n")
            for result in map(json.loads, whole):
                if "refused" not in result:
                    yield result
                    heard = monotonic()
                elif result["refused"] is None:
                    return
                else:
                    raise ConfigError(result["refused"])
            if status is not None:
                raise NoVerdictError(_ended(status))
            if monotonic() - heard > timeout:
                raise NoVerdictError(f"the process gave no result for {timeout:g} s and was killed")


def _ended(status: int) -> str:
    if status >= 0:
        return f"the process ended with exit status {status} before the last result"
    names = {number.value: number.name for number in signal.Signals}
    return f"the process was killed by {names.get(-status, f'signal {-status}')} before the last result"


def _printable(text: str) -> str:
    """The text without control characters, which a terminal would interpret."""
    return "".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in text)


def _line(result: Mapping[str, Any]) -> str:
    length = result["tokens_per_round"]
    speed = "" if length is None else f"{length:5.2f} tokens per round"
    return f"  {result['start']:40} {verdict(result['violations'], speed)}"


def verdict(violations: Sequence[str], measured: str) -> str:
    """The result column of a law or a start: PASS or FAIL with the measurement, and a line per violation."""
    head = f"{'FAIL' if violations else 'PASS'} {measured}".rstrip()
    return "\n".join([head, *(indent(each, "    ") for each in violations)])


def _sum(name: str, done: Sequence[Mapping[str, Any]]) -> str:
    if failed := sum(bool(result["violations"]) for result in done):
        return f"{name} VIOLATES the contract in {failed} of {count(len(done), 'engine start')}"
    return f"{name} satisfies the contract in {count(len(done), 'engine start')}"


def _record(name: str, done: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    starts = [{key: result[key] for key in ("start", "tokens_per_round", "violations")} for result in done]
    return {"name": name, "passed": not any(result["violations"] for result in done), "starts": starts}
