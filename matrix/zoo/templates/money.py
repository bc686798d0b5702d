"""Problems of prices, wages, savings and change."""
# ruff: noqa: E501 - a phrasing is one sentence and reads best on one line

from specmatrix.matrix.zoo.templates.form import template

MONEY = (
    template(
        "buy_many",
        "a:S b:T",
        [
            "One ticket costs ${b}. How much do {a} tickets cost?",
            "{P} buys {a} shirts for ${b} each. How much does {he} pay?",
            "A lamp costs ${b}. {P} wants {a} lamps. How much money does {P} need?",
        ],
        ["The cost is [$c={a}*{b}]."],
    ),
    template(
        "change_back",
        "a:S b:T d:T",
        [
            "{P} buys {a} shirts for ${b} each. {He} pays with ${n}. How much change does {P} get?",
            "A shirt costs ${b}. {P} has ${n} and buys {a} shirts. How much money is left?",
            "With ${n} in {his} pocket, {P} pays for {a} lamps at ${b} each. How much money does {P} have now?",
        ],
        ["The cost is [$c={a}*{b}].", "What is left is [$e={n}-{c}]."],
        "n=a*b+d",
    ),
    template(
        "two_items",
        "a:S b:T d:S e:T",
        [
            "{P} buys {a} books for ${b} each and {d} lamps for ${e} each. How much does {P} pay?",
            "A book costs ${b} and a lamp costs ${e}. What is the price of {a} books and {d} lamps?",
            "{P} needs {a} books at ${b} each. {Q} needs {d} lamps at ${e} each. How much do they pay together?",
        ],
        ["The books cost [$f={a}*{b}].", "The lamps cost [$g={d}*{e}].", "Together it is [$h={f}+{g}]."],
    ),
    template(
        "save_weeks",
        "a:S b:T d:T",
        [
            "{P} has ${d} and saves ${b} every week. How much money does {P} have after {a} weeks?",
            "Every week {P} puts ${b} into a jar that already holds ${d}. How much is in the jar after {a} weeks?",
            "{P} saves ${b} a week for {a} weeks. {He} had ${d} before. How much does {P} have now?",
        ],
        ["{P} saves [$c={a}*{b}].", "With the first money it is [$e={c}+{d}]."],
    ),
    template(
        "save_and_spend",
        "a:S b:T d:T",
        [
            "{P} earns ${b} a day for {a} days and spends ${d}. How much money is left?",
            "{P} works {a} days for ${b} a day. Then {he} spends ${d} on food. How much does {P} keep?",
            "After {a} days of work at ${b} a day, {P} buys a coat for ${d}. How much money does {P} have left?",
        ],
        ["{P} earns [$c={a}*{b}].", "After spending it is [$e={c}-{d}]."],
    ),
    template(
        "hourly_two_rates",
        "a:S b:T d:S e:T",
        [
            "{P} earns ${b} an hour in the week and ${e} an hour on Sunday. {He} works {a} hours in the week and {d} hours on Sunday. How much does {P} earn?",
            "{P} works {a} hours at ${b} an hour and {d} hours at ${e} an hour. How much money does {he} make?",
            "A job pays ${b} an hour by day and ${e} an hour by night. {P} works {a} hours by day and {d} by night. What is the pay?",
        ],
        ["The first part pays [$f={a}*{b}].", "The second part pays [$g={d}*{e}].", "In total it is [$h={f}+{g}]."],
    ),
    template(
        "profit_on_stall",
        "a:T b:S d:S",
        [
            "{P} buys {a} {thing} for ${b} each and sells them for ${n} each. How much profit does {P} make?",
            "{P} pays ${b} for each of {a} {thing} and sells each one for ${n}. What is the profit?",
            "At a stall {P} sells {a} {thing} at ${n} each. Each one cost {P} ${b}. How much does {he} gain?",
        ],
        ["The profit on one is [$c={n}-{b}].", "The whole profit is [$e={a}*{c}]."],
        "n=b+d",
    ),
    template(
        "split_bill",
        "a:S b:T",
        [
            "A dinner for {a} people costs ${n}. They split it evenly. How much does each one pay?",
            "{P} and {his} friends, {a} people in all, share a bill of ${n}. How much is one share?",
            "{a} people pay ${n} together, all the same amount. How much does each person pay?",
        ],
        ["Each one pays [$c={n}/{a}]."],
        "n=a*b",
    ),
    template(
        "split_bill_tip",
        "a:S b:T d:T",
        [
            "A dinner costs ${m} and the tip is ${d}. {a} friends share the total evenly. How much does each friend pay?",
            "{a} friends pay ${m} for food and ${d} for drinks, and all pay the same. How much does each friend pay?",
            "{P} and others, {a} people in all, split a bill of ${m} and a taxi of ${d}. How much is one share?",
        ],
        ["The total is [$c={m}+{d}].", "One share is [$e={c}/{a}]."],
        "m=a*b-d",
    ),
    template(
        "need_more_money",
        "a:H b:T d:S e:S",
        [
            "A bike costs ${a}. {P} has ${b} and earns ${d} on each of {e} days. How much more money does {P} need?",
            "{P} wants a bike for ${a}. {He} has saved ${b} and gets ${d} a week for {e} weeks. How much is still missing?",
            "{P} has ${b}. {He} then works {e} hours at ${d} an hour. How much more does {he} need for a bike of ${a}?",
        ],
        ["{P} earns [$f={d}*{e}].", "{P} has [$g={b}+{f}].", "{P} still needs [$h={a}-{g}]."],
    ),
    template(
        "cheaper_shop",
        "a:S b:T d:G",
        [
            "A lamp costs ${b} in one shop and ${n} in another. How much does {P} save on {a} lamps in the cheaper shop?",
            "{P} buys {a} chairs. They cost ${n} each in town but only ${b} each online. How much does {P} save online?",
            "The price of a chair falls from ${n} to ${b}. How much less do {a} chairs cost now?",
        ],
        ["One is cheaper by [$c={n}-{b}].", "The saving is [$e={a}*{c}]."],
        "n=b+d",
    ),
    template(
        "rent_and_food",
        "a:H b:T d:T e:T",
        [
            "{P} earns ${a} a month. {He} pays ${b} for rent, ${d} for food and ${e} for the bus. How much is left?",
            "Out of ${a}, {P} spends ${b} on rent, ${d} on food and ${e} on clothes. How much money does {P} have left?",
            "{P} has ${a}. The rent is ${b}, food is ${d} and power is ${e}. How much does {P} keep?",
        ],
        ["Rent and food make [$f={b}+{d}].", "All costs make [$g={f}+{e}].", "What is left is [$h={a}-{g}]."],
    ),
)
