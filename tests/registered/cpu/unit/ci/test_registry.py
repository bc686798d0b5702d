from pathlib import Path

import pytest

from specmatrix import HOME
from specmatrix.ci.registry import EXAMPLE, read_registry
from specmatrix.errors import ConfigError

pytestmark = pytest.mark.register(est_seconds=1, stage="pr")

ROOT = HOME
GOOD = 'import pytest\npytestmark = pytest.mark.register(est_seconds=2, stage="pr")\n'
NAME = "tests/registered/cpu/test_it.py"


@pytest.fixture
def repository(tmp_path):
    """A repository with one test file of the given text."""

    def build(text: str, name: str = NAME) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return tmp_path

    return build


def test_every_test_of_this_repository_is_registered():
    own = [row for row in read_registry(ROOT) if row.path == Path(__file__).relative_to(ROOT)]
    assert [(row.est_seconds, row.tier, row.stage) for row in own] == [(1.0, "cpu", "pr")]


def test_a_registration_may_stand_in_a_list_of_marks(repository):
    text = GOOD.replace("= pytest", "= [pytest").rstrip() + ", pytest.mark.timeout(9)]\n"
    (row,) = read_registry(repository(text))
    assert (row.path, row.est_seconds, row.tier, row.stage) == (Path(NAME), 2.0, "cpu", "pr")


def test_files_without_tests_need_no_registration(repository):
    assert read_registry(repository("x = 1\n", "tests/registered/cpu/conftest.py")) == []


def mark(arguments: str) -> str:
    return f"import pytest\npytestmark = pytest.mark.register({arguments})\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import pytest\n", f"{NAME} must have exactly one register mark, got 0; write: {EXAMPLE}"),
        (
            "import pytest\npytestmark = pytest.mark.slow\n",
            f"{NAME} must have exactly one register mark, got 0; write: {EXAMPLE}",
        ),
        (GOOD + GOOD, f"{NAME} must have exactly one register mark, got 2; write: {EXAMPLE}"),
        ("def\n", f"{NAME} is not valid Python: invalid syntax in line 1"),
        ("\0", f"{NAME} is not valid Python: source code string cannot contain null bytes in line 1"),
        (
            mark('2, stage="pr"'),
            f"{NAME}: the register mark accepts keyword arguments only; write: {EXAMPLE}",
        ),
        (
            mark('est_seconds=1 + 1, stage="pr"'),
            f"{NAME}: register arguments must be literals, got est_seconds=1 + 1",
        ),
        (
            mark("est_seconds=2, stage=STAGE"),
            f"{NAME}: register arguments must be literals, got stage=STAGE",
        ),
        (mark("est_seconds=2"), f"{NAME}: register arguments must be est_seconds and stage, got est_seconds"),
        (mark(""), f"{NAME}: register arguments must be est_seconds and stage, got none"),
        (
            mark('est_seconds=0, stage="pr"'),
            f"{NAME}: est_seconds must be a positive number, got 0",
        ),
        (
            mark('est_seconds=True, stage="pr"'),
            f"{NAME}: est_seconds must be a positive number, got True",
        ),
        (
            mark('est_seconds=2, tier="gpu1", stage="pr"'),
            f"{NAME}: register arguments must be est_seconds and stage, got est_seconds, tier, stage",
        ),
        (
            mark('est_seconds=2, stage="weekly"'),
            f"{NAME}: stage must be one of smoke, pr, nightly, got 'weekly'",
        ),
    ],
)
def test_a_bad_registration_is_refused_in_one_sentence(repository, text, sentence):
    root = repository(text)
    with pytest.raises(ConfigError) as caught:
        read_registry(root)
    assert str(caught.value) == sentence


def test_a_file_outside_every_tier_is_refused(repository):
    root = repository(GOOD, "tests/registered/tpu/test_it.py")
    with pytest.raises(ConfigError) as caught:
        read_registry(root)
    assert str(caught.value) == (
        "tests/registered/tpu/test_it.py is not in a tier's folder; move it to one of tests/registered/cpu, "
        "tests/registered/gpu1, tests/registered/gpu2, tests/registered/gpu4, tests/registered/gpu8"
    )


@pytest.mark.parametrize(("text", "why"), [(b"# \xff", "UnicodeDecodeError: "), (b"-" * 100_000 + b"1", "R|M")])
def test_a_file_that_cannot_be_read_is_refused(repository, text, why):
    root = repository("")
    (root / NAME).write_bytes(text)
    with pytest.raises(ConfigError, match=f"^{NAME} cannot be read as Python: ({why})"):
        read_registry(root)
