"""Longer problems of four to six steps."""
# ruff: noqa: E501 - a phrasing is one sentence and reads best on one line

from specmatrix.matrix.zoo.templates.form import template

JOURNEYS = (
    template(
        "bakery_day",
        "a:S b:T d:S e:T f:T",
        [
            "A baker makes {a} trays of {b} rolls and {d} trays of {e} cakes. {f} pieces are sold. How many pieces are left?",
            "{P} bakes {a} trays with {b} rolls and {d} trays with {e} cakes and sells {f} of all these. How many remain?",
            "There are {a} trays of {b} rolls and {d} trays of {e} cakes in a shop until {f} pieces are sold. How many are still there?",
        ],
        [
            "There are [g={a}*{b}] rolls.",
            "There are [h={d}*{e}] cakes.",
            "Together there are [i={g}+{h}].",
            "After the sale there are [j={i}-{f}].",
        ],
    ),
    template(
        "school_fair",
        "a:S b:T d:S e:T f:T",
        [
            "At a fair {P} sells {a} cups of tea for ${b} each and {d} pies for ${e} each. The stall costs ${f}. How much does {P} earn?",
            "{P} sells {a} bowls at ${b} and {d} vases at ${e}, and pays ${f} for the table. What is the profit?",
            "A club sells {a} shirts for ${b} and {d} caps for ${e}. It paid ${f} for all. How much does the club earn?",
        ],
        [
            "The first bring [$g={a}*{b}].",
            "The second bring [$h={d}*{e}].",
            "Together it is [$i={g}+{h}].",
            "The profit is [$j={i}-{f}].",
        ],
    ),
    template(
        "wage_and_rent",
        "a:S b:T d:S e:T",
        [
            "{P} works {a} hours a day for ${b} an hour. After {d} days {he} pays a rent of ${e}. How much is left?",
            "For ${b} an hour {P} works {a} hours on each of {d} days. Then {P} buys a phone for ${e}. How much money remains?",
            "{P} earns ${b} an hour. {He} works {d} days of {a} hours and spends ${e}. How much does {P} keep?",
        ],
        ["A day pays [$f={a}*{b}].", "All days pay [$g={f}*{d}].", "What is left is [$h={g}-{e}]."],
    ),
    template(
        "orchard",
        "a:S b:S d:T e:T f:S",
        [
            "A farm has {a} rows of {b} trees, and each tree gives {f} baskets. {d} baskets are sold and {e} go bad. How many baskets are left?",
            "{P} owns {a} rows of {b} trees with {f} baskets of fruit each. {He} sells {d} baskets and gives away {e}. How many baskets does {P} keep?",
            "In {a} rows stand {b} trees each. Every tree gives {f} baskets. First {d} and then {e} baskets are taken. How many baskets remain?",
        ],
        [
            "There are [g={a}*{b}] trees.",
            "They give [h={g}*{f}] baskets.",
            "After the first there are [i={h}-{d}].",
            "At last there are [j={i}-{e}].",
        ],
    ),
    template(
        "library",
        "a:S b:T d:T e:T f:T",
        [
            "A library has {a} shelves of {b} books. It buys {d} books, lends {e} and gets {f} back. How many books are there?",
            "On {a} shelves there are {b} books each. {P} adds {d}, {Q} takes {e} and {R} brings {f}. How many books are there now?",
            "{P} has {a} shelves with {b} books each. {He} gets {d} more, sells {e} and finds {f}. How many books does {P} have?",
        ],
        [
            "There are [g={a}*{b}] books.",
            "Then there are [h={g}+{d}].",
            "Then there are [i={h}-{e}].",
            "At last there are [j={i}+{f}].",
        ],
    ),
    template(
        "shared_gift",
        "a:S b:S d:T e:S",
        [
            "{P} buys {e} cups for ${m} each and a pot for ${d}. {a} friends share the cost evenly. How much does each friend pay?",
            "A gift has {e} cups at ${m} each and a plate at ${d}. {a} people pay for it, all the same. What does each person pay?",
            "{a} friends share the price of {e} books at ${m} and a bag at ${d}. How much is one share?",
        ],
        ["The first cost [$f={e}*{m}].", "All cost [$g={f}+{d}].", "One share is [$h={g}/{a}]."],
        "m=a*b;d=a*(d//a+1)",
    ),
    template(
        "savings_goal",
        "a:H b:T d:S e:T f:S",
        [
            "{P} saves for a bike of ${a}. {He} has ${b}, gets ${e} from {Q} and earns ${d} on each of {f} days. How much is missing?",
            "A bike costs ${a}. {P} has ${b}, {Q} gives ${e}, and {f} weeks bring ${d} each. How much more does {P} need?",
            "{P} needs ${a}. {He} has ${b}, finds ${e} and then saves ${d} a week for {f} weeks. How much does {P} still need?",
        ],
        [
            "First there is [$g={b}+{e}].",
            "The work brings [$h={d}*{f}].",
            "Together it is [$i={g}+{h}].",
            "What is missing is [$j={a}-{i}].",
        ],
    ),
    template(
        "family_trip",
        "a:S b:S d:T e:S f:S g:T",
        [
            "A trip for {a} adults at ${d} and {b} children at ${e} also needs a van for ${g}. {f} families share the van. Not counting the van, how much do the tickets and {f} meals at ${e} cost?",
            "{a} adults pay ${d} each and {b} children pay ${e} each. The van is ${g} but free today. They buy {f} meals at ${e}. How much do they pay?",
            "Tickets are ${d} for each of {a} adults and ${e} for each of {b} children; the ${g} van is not needed. With {f} meals at ${e}, how much is it?",
        ],
        [
            "The adults pay [$h={a}*{d}].",
            "The children pay [$i={b}*{e}].",
            "The meals cost [$j={f}*{e}].",
            "The tickets cost [$k={h}+{i}].",
            "In total it is [$l={k}+{j}].",
        ],
    ),
    template(
        "garden_project",
        "a:T b:S d:S e:S f:T",
        [
            "A garden is {a} by {b} feet. {P} plants {d} seeds on each square foot, and {f} seeds do not grow. Each plant sells for ${e}. How much does {P} earn?",
            "{P} has a bed of {a} by {b} feet with {d} plants per square foot. {f} plants die. The others bring ${e} each. How much money is that?",
            "On a field of {a} by {b} feet stand {d} plants per square foot. {f} are lost and the rest are sold for ${e} each. How much do they bring?",
        ],
        [
            "The area is [g={a}*{b}].",
            "There are [h={d}*{g}] plants.",
            "There are [i={h}-{f}] plants to sell.",
            "They bring [$j={i}*{e}].",
        ],
    ),
    template(
        "six_step_shop",
        "a:S b:T d:S e:T f:S g:T",
        [
            "{P} sells {a} chairs at ${b}, {d} desks at ${e} and {f} lamps at ${g}. {Q} adds the same again. How much is it now?",
            "A shop sells {a} chairs at ${b}, {d} desks at ${e} and {f} lamps at ${g}. It doubles this by night. What does it earn?",
            "{a} chairs at ${b}, {d} desks at ${e} and {f} lamps at ${g} are sold. {P} doubles the money. How much is it?",
        ],
        [
            "The chairs bring [$h={a}*{b}].",
            "The desks bring [$i={d}*{e}].",
            "The lamps bring [$j={f}*{g}].",
            "Chairs and desks make [$k={h}+{i}].",
            "All make [$l={k}+{j}].",
            "Twice that is [$m=2*{l}].",
        ],
    ),
)
