"""Grammars are compiled in a process with limits, once, and refused with xgrammar's reason."""

import gc
import os
import re
import signal
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path
from select import select
from threading import Barrier

import pytest

from specmatrix.child_process import ChildProcess
from specmatrix.engine import grammar_compiler
from specmatrix.engine.core.schedule.grammar import Constraint
from specmatrix.engine.grammar_compiler import LIMITS, RECENT, CompilerProcess, GrammarCompiler
from specmatrix.engine.models.tokenizer import Tokenizer
from specmatrix.errors import EngineError, RequestError
from tests.support.engines import CHECKPOINTS

TOKENIZER = Tokenizer(CHECKPOINTS / "llama-mini")
GROWS = Constraint("regex", "(.{1,3000}){1,30}")


def process(limits: tuple[float, int] = LIMITS) -> CompilerProcess:
    return CompilerProcess(TOKENIZER.text, (1,), 800, limits)


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(TOKENIZER, 768)


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("regex", "[", "Regex parsing error at position 2: Unclosed '['"),
        ("regex", "(?=a)", "Regex parsing error at position 3: Lookahead is not supported yet."),
        ("json_schema", '{"type":"foo"}', 'Unsupported type "foo"'),
        ("ebnf", "root ::= foo", 'EBNF parser error at line 1, column 10: Rule "foo" is not defined'),
        ("structural_tag", "{}", "Invalid structural tag error: Structural tag must have a format field"),
        ("structural_tag", '{"structures":5}', "'int' object is not iterable"),
    ],
)
def test_a_grammar_that_xgrammar_refuses_is_refused_with_its_reason(compiler, kind, text, why):
    message = f"{kind} is {text!r}; allowed: a grammar that xgrammar compiles ({why})"
    for _ in range(2):  # the second time from the cache
        with pytest.raises(RequestError, match=f"^{re.escape(message)}$"):
            compiler.compile(Constraint(kind, text))


def test_a_grammar_is_compiled_once_and_lives_with_its_requests_or_while_it_is_recent(compiler):
    """Also of engines with equal tokenizers, which compile in one process, and from several threads."""
    used, left = Constraint("regex", "used"), Constraint("regex", "left")
    held, both = compiler.compile(used), (compiler, GrammarCompiler(Tokenizer(CHECKPOINTS / "llama-mini"), 768))
    compiler.compile(left)
    with ThreadPoolExecutor(4) as threads:
        asked = [Constraint("regex", f"{number:03}") for number in range(RECENT)]
        made = [*threads.map(lambda pair: pair[0].compile(pair[1]), zip(both * RECENT, asked, strict=False))]
    assert all(one.text in str(grammar.grammar.grammar) for one, grammar in zip(asked, made, strict=True))
    del made
    gc.collect()
    assert compiler.compile(used) is held and compiler.live[used] is held
    assert left not in compiler.live and len({*both[0].live, *both[1].live}) == RECENT + 1
    assert both[1].compile(asked[8]) is compiler.live[asked[8]]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("limits", "why"), [((0.1, 2**29), "it took more than 0.1 s"), ((2.0, 2**20), "it took more than 1 MB")]
)
def test_a_grammar_beyond_a_limit_is_refused_and_the_next_one_compiles(limits, why):
    made = process(limits)
    assert made.compile(GROWS) == why
    small = made.compile(Constraint("regex", "a")).grammar
    assert small.memory_size_bytes < 1000 and small.tokenizer_info.vocab_size == 800
    assert {0, 799} <= {*small.tokenizer_info.special_token_ids} and small.tokenizer_info.stop_token_ids == [1]


def children(pid: int) -> set[int]:
    """The processes that a process's first thread started."""
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


@pytest.fixture
def started(monkeypatch) -> list[int]:
    """The compilers' processes, as they start."""
    pids, real = list[int](), grammar_compiler.start

    def noted(*given: object):
        process, connection = real(*given)
        pids.append(process.pid)
        return process, connection

    monkeypatch.setattr(grammar_compiler, "start", noted)
    return pids


def test_slow_grammars_delay_no_other_and_end_alone(started):
    made = process((60.0, 2**29))
    made.compile(Constraint("regex", "a"))
    (root,) = started
    with ThreadPoolExecutor(4) as threads:
        slow = [threads.submit(made.compile, Constraint("regex", f"{number}{GROWS.text}")) for number in range(4)]
        while len(children(root)) < len(slow):
            pass
        assert made.compile(Constraint("regex", "b")).grammar and not any(one.done() for one in slow)
        while not all(one.done() for one in slow):
            for pid in children(root):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        assert {str(one.exception()) for one in slow} == {
            "the process that compiles the grammar ended with status -9; ask again"
        }
    assert started == [root]


def test_a_quick_attempt_gives_a_slow_grammar_up_and_the_next_one_compiles_it(monkeypatch):
    """Also one that compiles quickly, but whose table takes longer: it would have none."""
    made = process((60.0, 2**29))
    monkeypatch.setattr("specmatrix.engine.grammar_compiler.QUICK", 0.05)
    for text, tabled in ((GROWS.text, False), ("([a-z]{1,30} ){1,20}", True)):
        late = Constraint("regex", text)
        assert made.compile(late, True) is None and made.compile(late, True) is None
        assert (made.compile(late).table is not None) == tabled
    assert made.compile(Constraint("regex", "b"), True).table is not None


def test_a_process_that_something_kills_is_started_again_and_refuses_no_grammar(started):
    made, word = process(), Constraint("regex", "a")
    made.compile(word)
    (first,) = started
    os.kill(first, signal.SIGKILL)  # idle, as by the kernel when memory is short
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert made.compile(Constraint("regex", "b")).grammar and made.compile(word).grammar
    assert len(started) == 2


def no_compiler(*_: object) -> None:
    raise SystemExit("no such library")


def test_a_process_that_does_not_start_says_why(monkeypatch):
    monkeypatch.setattr(grammar_compiler, "serve", no_compiler)
    message = "the process that compiles the grammar ended with status -9; ask again no such library"
    with pytest.raises(EngineError, match=f"^{message}$"):
        process().compile(Constraint("regex", "a"))


def test_first_grammars_of_several_threads_start_one_process(started):
    made, ready = GrammarCompiler(TOKENIZER, 900), Barrier(4)

    def compiled(number):
        ready.wait()
        return made.compile(Constraint("regex", f"first{number}"))

    with ThreadPoolExecutor(4) as threads:
        assert all(one.grammar for one in threads.map(compiled, range(4)))
    assert len(started) == 1


def test_a_grammar_that_is_late_on_a_busy_machine_is_not_remembered_as_refused(monkeypatch, started):
    made, word = process(), Constraint("regex", "late")
    (stopped,) = started
    os.kill(stopped, signal.SIGSTOP)
    monkeypatch.setattr("specmatrix.engine.grammar_compiler.SECONDS", 0.0)
    with pytest.raises(EngineError, match=r"^the grammar was not compiled within 0 s; ask again$"):
        made.compile(word)
    monkeypatch.setattr("specmatrix.engine.grammar_compiler.SECONDS", 60.0)
    assert select([os.pidfd_open(stopped)], [], [], 60.0)[0]  # it was killed
    assert made.compile(word).grammar


def half_an_answer(_tokens: str, _memory: int, connection: "Connection[object, object]") -> None:
    """A compiler that is killed in a message."""
    asked: Connection[object, object] = Connection(recv_handle(connection))
    asked.recv()
    os.write(asked.fileno(), struct.pack("!i", 100) + b"half")
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_in_a_message_fails_that_grammar_alone(monkeypatch):
    with monkeypatch.context() as planted:
        planted.setattr(grammar_compiler, "serve", half_an_answer)
        made = process()
        message = r"^the process that compiles the grammar ended with status -9; ask again$"
        with pytest.raises(EngineError, match=message):
            made.compile(Constraint("regex", "a"))
    assert made.compile(Constraint("regex", "a")).grammar


def test_a_compiling_fork_does_not_keep_the_connection_of_a_killed_process_open(monkeypatch, started):
    """Else the next grammar would wait for that fork. It is stopped here, so that it cannot end."""
    made = process((60.0, 2**29))
    made.compile(Constraint("regex", "c"))
    while children(started[0]):
        pass
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(made.compile, GROWS)
        while not (forks := children(started[0])):
            pass
        (fork,) = forks
        while sum(map(int, Path(f"/proc/{fork}/stat").read_text().rpartition(") ")[2].split()[11:13])) < 2:
            pass  # until it has used 2 ticks of CPU time
        os.kill(fork, signal.SIGSTOP)
        running = os.pidfd_open(started[0])
        os.kill(started[0], signal.SIGKILL)
        assert select([running], [], [], 60.0)[0]
        with monkeypatch.context() as unseen:  # as if its end was not noticed yet
            unseen.setattr(ChildProcess, "wait", lambda *_: None)
            unseen.setattr("specmatrix.engine.grammar_compiler.SECONDS", 5.0)
            with pytest.raises(EngineError, match=r"^the process that compiles .* ended with status -9; ask again$"):
                made.compile(Constraint("regex", "a"))
        os.kill(fork, signal.SIGKILL)
        slow.exception()
    assert made.compile(Constraint("regex", "b")).grammar
