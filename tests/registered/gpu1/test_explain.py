"""The traced run of a cell whose rounds run as CUDA graphs."""

from dataclasses import replace

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.lossless import LosslessGate
from specmatrix.matrix.run.explain import UNLIKE_GRAPHS
from specmatrix.matrix.run.runner import Runner
from specmatrix.matrix.subjects.in_process import ReferenceEngine, ReferenceSubject


def test_rounds_that_ran_as_graphs_show_their_drafts():
    runner = Runner(ReferenceSubject(), seed=0, tier="gpu1", explain="every")
    cell = runner.run_cell(Cell.from_id("eagle3.s3.k4.n8.v2.pair"))
    assert cell.state == "PASS" and cell.evidence["graph.replayed"] > 0 and cell.timeline is not None
    drawn = [row.tree for event in cell.timeline.events if event.event == "launch" for row in event.rows if row.tree]
    assert len(drawn) > 10 and {len(tree) for tree in drawn} == {8}


class Lying(ReferenceSubject):
    def start_engine(self, config):
        engine = super().start_engine(config)
        return LyingEngine(engine.llm, engine.clock) if config.speculative_algorithm != "NONE" else engine


class LyingEngine(ReferenceEngine):
    def generate(self, requests):
        first, *rest = super().generate(requests)
        return [replace(first, output_ids=(79, *first.output_ids[1:])), *rest]


def test_tokens_that_only_the_first_run_had_may_be_those_of_graphs():
    runner = Runner(Lying(), seed=0, gates=(LosslessGate(),), tier="gpu1", explain="red")
    ask = runner.run_cell(Cell.from_id("eagle3.s3.v2.pair")).first_red
    assert ask is not None and ask.note == UNLIKE_GRAPHS and ask.tree == ()
