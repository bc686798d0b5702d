"""Kernel timings without a GPU are refused in one sentence."""

from specmatrix.benchmarks import kernels


def test_a_host_without_a_gpu_gets_one_sentence(capsys):
    assert kernels.main() == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err == "benchmark 'kernels' needs a GPU but this machine has none\n"


def test_inputs_in_rotation_pass_the_cache():
    assert kernels.rotated(1e6) == 40
    assert kernels.rotated(5e7) == 6
    assert kernels.rotated(1e9) == 2


def test_the_table_is_markdown():
    spread = kernels.Spread(2.04, 1.96, 3.0)
    assert list(kernels.table(("a", "b"), iter([("x", spread)]))) == [
        "| a | b |",
        "|---|---|",
        "| x | 2.0 (2.0 to 3.0) |",
    ]
