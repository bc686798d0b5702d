"""The rooms of matrix/ import one way, and no module imports itself by way of others."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from tests.support.sources import imports, sources

# Each room may import those before it.
ROOMS = (
    "cells",
    "zoo",
    "cover",
    "workloads",
    "subjects",
    "golden",
    "oracles",
    "conformance",
    "gates",
    "run",
    "accuracy",
    "faults",
    "plugin",
    "cli",
)
MAX_ROOMS = 14


def modules() -> dict[str, str]:
    """The files of matrix/ by the names of their modules."""
    found = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in sources("matrix")}
    return {name: path for name, path in found.items() if name != "matrix"}


def module_graph() -> dict[str, set[str]]:
    """The modules of matrix/ that each of them imports, in functions and for types too."""
    known = modules()
    graph: dict[str, set[str]] = {}
    for module, path in known.items():
        names = (name if name in known else name.rpartition(".")[0] for name in imports(path))
        graph[module] = {name for name in names if name in known} - {module}
    return graph


def test_every_folder_of_the_matrix_is_a_room():
    assert {module.split(".")[1] for module in modules()} == set(ROOMS) and len(ROOMS) <= MAX_ROOMS


def test_rooms_import_only_those_before_them():
    place = {f"matrix.{room}": number for number, room in enumerate(ROOMS)}
    room = {module: place[".".join(module.split(".")[:2])] for module in module_graph()}
    upward = {
        f"{module} imports {other}"
        for module, others in module_graph().items()
        for other in others
        if room[other] > room[module]
    }
    assert not upward


def test_no_module_imports_itself_by_way_of_others():
    try:
        TopologicalSorter(module_graph()).prepare()
    except CycleError as error:
        cycle = " imports ".join(reversed(error.args[1]))
    else:
        cycle = ""
    assert not cycle
