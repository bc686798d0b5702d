"""Templates that no zoo model is trained on."""
# ruff: noqa: E501 - a phrasing is one sentence and reads best on one line

from specmatrix.matrix.zoo.templates.form import template

HELDOUT = (
    template(
        "lost_and_split",
        "a:S b:T d:S",
        [
            "{P} had {n} {thing} and lost {d}. The others are put into {a} bags evenly. How many {thing} go into each bag?",
            "{P} has {n} {thing} and loses {d}. {He} shares the rest evenly among {a} friends. How many {thing} does each friend get?",
        ],
        ["There are [c={n}-{d}] {thing} to share.", "Each one gets [e={c}/{a}] {thing}."],
        "n=a*b+d",
    ),
    template(
        "earn_on_top",
        "a:S b:S d:T",
        [
            "{P} has ${d} and earns ${b} a day. How much money does {P} have after {a} days?",
            "{P} works {a} hours for ${b} an hour. {He} had ${d} before. How much does {P} have now?",
        ],
        ["{P} earns [$c={a}*{b}].", "With the first money it is [$e={c}+{d}]."],
    ),
    template(
        "two_helpers",
        "a:T b:T d:T",
        [
            "{P} has {a} {thing}. {Q} has {b} more than {P}. {R} has {d}. How many {thing} do all three have?",
            "{P} found {a} {thing}, {Q} found {b} more than that and {R} found {d}. How many {thing} did they find together?",
        ],
        ["{Q} has [c={a}+{b}].", "Together they have [e={a}+{c}].", "In all it is [f={e}+{d}]."],
    ),
    template(
        "pay_per_piece",
        "a:T b:S d:S",
        [
            "{P} sells {a} chairs at ${b} each. Then {he} spends ${d} on food. How much does {P} keep?",
            "{P} earns ${b} an hour for {a} hours and buys a coat for ${d}. How much money is left?",
        ],
        ["{P} earns [$c={a}*{b}].", "After spending it is [$e={c}-{d}]."],
    ),
    template(
        "shelves_full",
        "a:S b:T d:S e:T",
        [
            "{P} buys {a} packs of {b} {thing}. {Q} buys {d} packs of {e} {thing}. How many more {thing} does {P} have?",
            "{a} red jars hold {b} {thing} each; {d} blue jars hold {e} {thing} each and hold fewer in all. What is the difference?",
        ],
        [
            "The first kind makes [f={a}*{b}] {thing}.",
            "The second kind makes [g={d}*{e}] {thing}.",
            "The difference is [h={f}-{g}].",
        ],
    ),
    template(
        "older_sum",
        "a:T b:S d:S",
        [
            "{P} is {a} years old. {Q} is {b} times as old, and {R} is {d} years younger than {Q}. How old is {R}?",
            "{R} is {d} years younger than {Q}, who is {b} times as old as {P}. {P} is {a}. What is the age of {R}?",
        ],
        ["{b} times as many is [c={a}*{b}].", "With {d} fewer it is [e={c}-{d}]."],
    ),
    template(
        "refund",
        "a:S b:T d:G",
        [
            "{P} buys {a} tickets for ${b} each and gives {d} of them back for the full price. How much does {he} pay in the end?",
            "Tickets cost ${b}. {P} pays for {a} and returns {d}. How much has {P} paid at the end?",
        ],
        ["The cost is [$c={a}*{b}].", "The tickets given back bring [$e={d}*{b}].", "What is left is [$f={c}-{e}]."],
    ),
    template(
        "sale_many",
        "a:S b:S p:P",
        [
            "{P} buys {a} chairs for ${n} each and gets {p}% off. How much does {P} pay?",
            "{a} desks cost ${n} each. The whole order is {p}% cheaper today. How much is it?",
        ],
        ["The price is [$c={a}*{n}].", "The discount is [$d={c}*{p}/100].", "The price is [$e={c}-{d}]."],
        "n=20*b",
    ),
)
