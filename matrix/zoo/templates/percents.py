"""Problems of percentages and areas."""
# ruff: noqa: E501 - a phrasing is one sentence and reads best on one line

from specmatrix.matrix.zoo.templates.form import template

PERCENTS = (
    template(
        "percent_of",
        "a:T p:P",
        [
            "{p}% of {n} {thing} are red. How many {thing} are red?",
            "{P} gives {p}% of {his} {n} {thing} to {Q}. How many {thing} does {Q} get?",
            "A class has {n} children and {p}% of them walk to school. How many children walk?",
        ],
        ["It is [c={n}*{p}/100]."],
        "n=20*a",
    ),
    template(
        "percent_rest",
        "a:T p:P",
        [
            "{p}% of {n} {thing} are red. How many {thing} are not red?",
            "{P} sells {p}% of {his} {n} {thing}. How many {thing} are left?",
            "Of {n} people, {p}% stay at home. How many people go out?",
        ],
        ["{p}% is [c={n}*{p}/100].", "The rest is [d={n}-{c}]."],
        "n=20*a",
    ),
    template(
        "discount",
        "a:S p:P",
        [
            "A coat costs ${n}. It is sold {p}% off. What is the new price?",
            "{P} gets {p}% off a price of ${n}. How much does {P} pay?",
            "The price of a desk is ${n}, but there is a sale of {p}%. How much is the desk now?",
        ],
        ["The discount is [$c={n}*{p}/100].", "The price is [$d={n}-{c}]."],
        "n=20*a",
    ),
    template(
        "raise_pay",
        "a:T p:P",
        [
            "{P} earns ${n} a week and gets {p}% more. What is the new pay?",
            "A rent of ${n} rises by {p}%. How much is the rent now?",
            "The price of ${n} goes up by {p}%. What is the price now?",
        ],
        ["The rise is [$c={n}*{p}/100].", "Now it is [$d={n}+{c}]."],
        "n=20*a",
    ),
    template(
        "tax_many",
        "a:S b:S p:P",
        [
            "{P} buys {a} chairs for ${n} each and pays {p}% tax. How much does {P} pay?",
            "{a} lamps cost ${n} each, and a fee of {p}% is added. What is the total?",
            "The price of a chair is ${n}. {P} orders {a} of them, with {p}% on top. How much is it?",
        ],
        ["The price is [$c={a}*{n}].", "The extra is [$d={c}*{p}/100].", "The total is [$e={c}+{d}]."],
        "n=20*b",
    ),
    template(
        "area",
        "a:T b:S",
        [
            "A garden is {a} feet long and {b} feet wide. What is its area in square feet?",
            "{P} has a field of {a} by {b} meters. How many square meters is the field?",
            "A wall is {a} feet long and {b} feet high. How many square feet does {P} have to paint?",
        ],
        ["The area is [c={a}*{b}]."],
    ),
    template(
        "fence",
        "a:H b:T",
        [
            "A garden is {a} feet long and {b} feet wide. How many feet of fence go around it?",
            "{P} walks once around a field of {a} by {b} meters. How many meters does {P} walk?",
            "A picture is {a} inches wide and {b} inches high. How many inches of frame are needed?",
        ],
        ["Two sides make [c={a}+{b}].", "All sides make [d=2*{c}]."],
    ),
    template(
        "fence_cost",
        "a:T b:T d:S",
        [
            "A garden is {a} feet long and {b} feet wide. A foot of fence costs ${d}. How much does a fence around the garden cost?",
            "{P} puts a fence around a yard of {a} by {b} feet at ${d} a foot. How much does {he} pay?",
            "The fence of a field of {a} by {b} meters costs ${d} a meter. What is the price of the fence?",
        ],
        ["Two sides make [c={a}+{b}].", "All sides make [e=2*{c}].", "The cost is [$f={e}*{d}]."],
    ),
    template(
        "tiles",
        "a:S b:S d:S",
        [
            "A floor is {a} feet long and {b} feet wide. A tile for one square foot costs ${d}. How much do the tiles cost?",
            "{P} covers a table of {a} by {b} feet with tiles at ${d} for a square foot. How much does it cost?",
            "Paint for one square foot costs ${d}. A wall is {a} by {b} feet. How much does the paint cost?",
        ],
        ["The area is [c={a}*{b}].", "The cost is [$e={c}*{d}]."],
    ),
    template(
        "average",
        "a:T b:T d:T",
        [
            "{P} scores {a}, {b} and {m} points in three games. What is the average?",
            "On three days it rained {a}, {b} and {m} millimeters. What is the mean of the days?",
            "{P} has {a} {thing}, {Q} has {b} and {R} has {m}. They share evenly. How many {thing} does each get?",
        ],
        ["The first two make [c={a}+{b}].", "All make [e={c}+{m}].", "A third of it is [f={e}/3]."],
        "m=3*d-(a+b)%3",
    ),
)
