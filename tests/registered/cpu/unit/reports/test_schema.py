import pytest
from msgspec.structs import replace

from specmatrix.reports.gate_numbers import FAULTS
from specmatrix.reports.rules import check_cell
from specmatrix.reports.schema import GateResult, ReportError, Waiver, WaiverRule, is_waived
from specmatrix.reports.store import ReportWriter


def test_gate_finds_by_name(make_cell):
    assert make_cell().gate("lossless") == GateResult("lossless", "PASS", {"tokens": 256})
    assert make_cell().gate("accuracy") is None


@pytest.mark.parametrize(
    ("today", "waived"), [("2026-12-30", True), ("2026-12-31T23:59:59+00:00", True), ("2027-01-01", False)]
)
def test_a_waiver_holds_until_the_end_of_its_day(make_cell, today, waived):
    assert is_waived(make_cell(waived=Waiver("known", "2026-12-31")), today) is waived


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"state": "PASS", "error": "no answer"}, "is PASS and has an error: no answer"),
        ({"state": "PASS", "gates": ("FAIL",)}, "is PASS and its gate g0 is FAIL"),
        ({"state": "PASS", "gates": ("PASS", "NOT MEASURED")}, "is PASS and its gate g1 is NOT MEASURED"),
        ({"state": "PASS", "gates": ()}, "is PASS without any gate"),
        ({"state": "FAIL", "gates": ("PASS",)}, "is FAIL without an error or a gate that is FAIL"),
        ({"state": "FAIL", "gates": ("NOT MEASURED",)}, "is FAIL without an error or a gate that is FAIL"),
        ({"state": "NOT MEASURED", "gates": ()}, "is NOT MEASURED without an error or a gate that is NOT MEASURED"),
        ({"state": "NOT MEASURED", "gates": ("NOT MEASURED", "FAIL")}, "is NOT MEASURED and its gate g1 is FAIL"),
        ({"state": "INFRA", "gates": ()}, "is INFRA without an error"),
        ({"state": "INFRA", "error": "x", "gates": ("FAIL",)}, "is INFRA and its gate g0 is FAIL"),
        ({"state": "UNSUPPORTED", "gates": ("PASS",)}, "is UNSUPPORTED without an error"),
    ],
)
def test_a_cell_that_contradicts_itself_is_refused(tmp_path, make_cell, make_header, parts, sentence):
    if "gates" in parts:
        parts = parts | {"gates": tuple(GateResult(f"g{i}", state) for i, state in enumerate(parts["gates"]))}
    cell = replace(make_cell("a"), **parts)
    with pytest.raises(ValueError, match=f"^cell 'a' {sentence}$"):
        check_cell(cell)
    with pytest.raises(ReportError, match=sentence), ReportWriter(tmp_path, make_header()) as writer:
        writer.write(cell)


@pytest.mark.parametrize(
    ("gate", "name", "value"),
    [
        ("acceptance", "length", -1),
        ("acceptance", "length", float("nan")),
        ("acceptance", "reference", 0),
        ("acceptance", "ratio", True),
        ("acceptance", "per_position", [0.5, 1.5]),
        ("acceptance", "emitted", [1, 0]),
        ("acceptance", "rounds", "40 31"),
        ("acceptance", "rounds", [1e12]),
        ("accuracy", "accuracy", "high"),
        ("accuracy", "baseline", 1.01),
        ("accuracy", "n", 3.5),
        ("accuracy", "lost", -1),
        ("accuracy", "won", 10**400),
        ("accuracy", "outcomes", "10x"),
        ("accuracy", "outcomes", "10\n"),
        ("lossless", "tokens", "x" * 1000),
        ("lossless", "tokens", [0] * 1000),
        ("lossless", "tokens", True),
        ("lossless", "ties", "0"),
        ("lossless", "divergent", "5"),
        ("lossless", "first_divergence", 0),
        ("ledger", "stamps", {"a": 1}),
        ("config", "fields", None),
        ("speed", "starts", -1),
        ("speed", "turns", -1),
        ("speed", "speed_ups", [1.0, 0.0]),
        ("speed", "work_ms", 0),
        ("speed", "gpus", -1),
        ("speed", "clock", 3),
    ],
)
def test_a_number_of_the_wrong_kind_is_refused(make_cell, gate, name, value):
    with pytest.raises(ValueError, match=rf"^cell 'a' has a wrong number of gate {gate}: .*\$\.{name}\S*$"):
        check_cell(make_cell("a", gates=(GateResult(gate, "PASS", {name: value}),)))


@pytest.mark.parametrize("day", ["", "soon", "20261231", "2026-13-01", "2026-W53-4"])
def test_a_day_that_does_not_compare_as_text_is_refused(make_header, day):
    for name, make in (
        ("expiry", lambda: Waiver("known", day)),
        ("expiry", lambda: WaiverRule("topk=4", "known", day)),
        ("created", lambda: make_header(created=day)),
    ):
        with pytest.raises(ValueError, match=f"^{name} must be a date such as 2026-12-31, got {day!r}$"):
            make()


@pytest.mark.parametrize("time", ["2026-01-01 rubbish", "2026-01-01", "2026-01-01T10:00:00"])
def test_a_run_was_made_at_a_time_with_zone(make_header, time):
    sentence = f"^created must be a time with zone such as 2026-12-31T10:00:00\\+00:00, got {time!r}$"
    with pytest.raises(ValueError, match=sentence):
        make_header(created=time)


def test_a_waiver_has_a_reason():
    with pytest.raises(ValueError, match=r"^the reason of a waiver is empty; say why the failure is accepted$"):
        Waiver(" ", "2026-12-31")


@pytest.mark.parametrize("address", ["http://x/y", "javascript:alert(1)", "https://x", 'https://x/"y', "https://x/y z"])
def test_a_repository_is_an_address_that_a_page_may_link(make_header, address):
    assert make_header(repository="https://host.example:8443/owner/name").repository
    with pytest.raises(ValueError, match=r"^repository must be an address such as https://host/name, got "):
        make_header(repository=address)


def test_gpus_of_a_host_are_a_list(make_header):
    with pytest.raises(ValueError, match=r"^gpus of host must be a list, got 8$"):
        make_header(host={"gpus": 8})


@pytest.mark.parametrize(("gate", "name"), [(gate, name) for gate, names in FAULTS.items() for name in names])
def test_a_gate_that_found_a_fault_does_not_pass(make_cell, gate, name):
    value = "q6, token 2" if name == "first_divergence" else 5
    with pytest.raises(ValueError, match=f"has a gate {gate} that is PASS and its {name} is {value!r}$"):
        check_cell(make_cell(gates=(GateResult(gate, "PASS", {name: value}),)))
    check_cell(make_cell(gates=(GateResult(gate, "FAIL", {name: value}),)))
    check_cell(make_cell(gates=(GateResult(gate, "PASS", {name: type(value)()}),)))


def passing(**gates: dict) -> tuple[GateResult, ...]:
    return tuple(GateResult(name, "PASS", numbers) for name, numbers in gates.items())


@pytest.mark.parametrize(
    ("gates", "sentence"),
    [
        (passing(ledger={}) * 2, "has a gate twice"),
        (passing(accuracy={"lost": 2, "won": 2, "n": 3}), r"more lost and won of gate accuracy than n, 2 \+ 2 of 3$"),
        ((GateResult("finish", "PASS", {}, (1.0, 0.5)),), r"gate finish whose interval does not rise, \(1.0, 0.5\)$"),
    ],
)
def test_what_gates_say_fits_together(make_cell, gates, sentence):
    with pytest.raises(ValueError, match=sentence):
        check_cell(make_cell(gates=gates))


def test_a_refused_start_has_no_gate_of_a_run(make_cell):
    check_cell(make_cell(expect="refused", gates=passing(config={})))
    with pytest.raises(ValueError, match=r"expects a refusal, and its gate ledger judged a run$"):
        check_cell(make_cell(expect="refused"))
