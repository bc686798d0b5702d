"""Templates that no model of the zoo is ever trained on."""

from matrix.zoo.templates.form import template

HELDOUT = (
    template("lost_and_split", "a:S b:T d:S", [
        "{P} had {n} {thing} and lost {d}. {He} puts the others on {a} shelves evenly. How many {thing} are on each shelf?",
        "From {n} {thing}, {P} takes {d} out and shares the others among {a} friends evenly. How many {thing} does each friend get?",
    ], ["There are [c={n}-{d}] {thing} to share.", "Each one gets [e={c}/{a}] {thing}."], "n=a*b+d"),
    template("taxi", "a:S b:S d:T", [
        "A taxi costs ${d} and ${b} for each mile. How much does {P} pay for {a} miles?",
        "{P} rides {a} miles in a taxi. The ride costs ${b} a mile and ${d} at the start. How much is the ride?",
    ], ["The miles cost [$c={a}*{b}].", "With the start it is [$e={c}+{d}]."]),
    template("two_helpers", "a:T b:T d:T", [
        "{P} washes {a} cups, {Q} washes {b} more than {P}. {d} cups are still dirty. How many cups are there in all?",
        "{Q} paints {b} more doors than {P}, who paints {a}. {d} doors are not painted. How many doors are there?",
    ], ["{Q} has [c={a}+{b}].", "Together they have [e={a}+{c}].", "In all it is [f={e}+{d}]."]),
    template("pay_per_piece", "a:T b:S d:S", [
        "{P} gets ${b} for each basket and picks {a} baskets. {He} pays ${d} for lunch. How much does {P} keep?",
        "For each of {a} signs {P} is paid ${b}. Lunch costs ${d}. How much money does {P} have in the evening?",
    ], ["{P} earns [$c={a}*{b}].", "After spending it is [$e={c}-{d}]."]),
    template("shelves_full", "a:S b:T d:S e:T", [
        "{P} fills {a} shelves with {b} {thing} and {Q} fills {d} shelves with {e} {thing}. How many more {thing} does {P} have, if {P} has more?",
        "{a} red jars hold {b} {thing} each; {d} blue jars hold {e} {thing} each and hold fewer in all. What is the difference?",
    ], ["The first kind makes [f={a}*{b}] {thing}.", "The second kind makes [g={d}*{e}] {thing}.", "The difference is [h={f}-{g}]."]),
    template("older_sum", "a:T b:S d:S", [
        "{P} is {a} years old. {Q} is {b} times as old, and {R} is {d} years younger than {Q}. How old is {R}?",
        "{R} is {d} years younger than {Q}, who is {b} times as old as {P}. {P} is {a}. What is the age of {R}?",
    ], ["{b} times as many is [c={a}*{b}].", "With {d} fewer it is [e={c}-{d}]."]),
    template("refund", "a:S b:T d:G", [
        "{P} buys {a} tickets for ${b} each and gives {d} of them back for the full price. How much does {he} pay in the end?",
        "Tickets cost ${b}. {P} pays for {a} and returns {d}. How much has {P} paid at the end?",
    ], ["The cost is [$c={a}*{b}].", "The tickets given back bring [$e={d}*{b}].", "What is left is [$f={c}-{e}]."]),
    template("sale_many", "a:S b:S p:P", [
        "{P} buys {a} coats for ${n} each at {p}% off the total. How much does {P} pay?",
        "{a} desks cost ${n} each. The whole order is {p}% cheaper today. How much is it?",
    ], ["The price is [$c={a}*{n}].", "The discount is [$d={c}*{p}/100].", "The price is [$e={c}-{d}]."], "n=20*b"),
)
