import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from specmatrix.reports.render.plots import MAX_POINTS, Point, Row, strip_plot


def point(value, tone="good"):
    return Point(value, value - 0.1, value + 0.1, tone, f"<{value}>")


def marks(svg, kind):
    return [each for each in ElementTree.fromstring(svg).iter() if kind in each.get("class", "").split()]


def test_every_point_has_its_place_interval_and_title():
    svg = strip_plot(
        [Row("a", (point(1.0), point(2.0, "bad"))), Row("b & c", (point(3.0),), "3 & more")], "", band=(1.5, 2.5)
    )
    centres = [float(each.get("cx")) for each in marks(svg, "dot")]
    assert centres == sorted(centres) and len(centres) == 3
    assert len(marks(svg, "bar")) == 3 and [each.text for each in marks(svg, "note")] == ["3 & more"]
    assert [each.text for each in ElementTree.fromstring(svg).iter("title")] == ["<1.0>", "<2.0>", "<3.0>"]
    assert "b & c" in [each.text for each in marks(svg, "label")]
    for bar, centre in zip(marks(svg, "bar"), centres, strict=True):
        assert float(bar.get("x1")) < centre < float(bar.get("x2"))
    (band,) = marks(svg, "band")
    start = float(band.get("x"))
    assert centres[0] < start < centres[1] < start + float(band.get("width")) < centres[2]


def test_the_scale_is_common_and_holds_everything():
    svg = strip_plot([Row("a", (point(-3.0),)), Row("b", (point(8.0),))], " %", zero=0.0)
    width = float(re.search(r'viewBox="0 0 (\S+)', svg)[1])
    assert all(0 <= float(each.get("cx")) <= width for each in marks(svg, "dot"))
    ticks = {each.text: float(each.get("x")) for each in marks(svg, "tick")}
    assert "0 %" in ticks and len(ticks) >= 3
    assert float(marks(svg, "zero")[0].get("x1")) == ticks["0 %"]


@pytest.mark.parametrize(("low", "high", "note"), [(1.0, 6.0, ""), (0.97, 1.03, "x" * 40), (-3.0, 0.0, ""), (5, 5, "")])
def test_the_axis_is_labelled_at_both_ends_beyond_every_interval(low, high, note):
    row = Row("a", (Point(low, low, low, "good", ""), Point(high, high - 0.5, high + 0.5, "good", "")), note)
    svg = strip_plot([row], "")
    ticks = [float(each.get("x")) for each in marks(svg, "tick")]
    ends = [float(each.get(name)) for each in marks(svg, "bar") for name in ("x1", "x2")]
    assert ticks[0] < min(ends) and max(ends) < ticks[-1]
    assert all(right - left > 25 for left, right in pairwise(ticks))


def test_many_points_are_thinned_but_red_ones_stay():
    many = [point(1 + index / 1000) for index in range(1000)] + [point(3.0, "bad") for _ in range(7)]
    svg = strip_plot([Row("a", tuple(many))], "")
    assert len(marks(svg, "bad")) == 7
    assert len(marks(svg, "good")) <= MAX_POINTS
