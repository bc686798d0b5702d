"""Problems of dividing into equal parts and grouping."""
# ruff: noqa: E501 - a phrasing is one sentence and reads best on one line

from specmatrix.matrix.zoo.templates.form import template

SHARING = (
    template(
        "equal_bags",
        "a:S b:T",
        [
            "{P} puts {n} {thing} into {a} bags evenly. How many {thing} are in each bag?",
            "{n} {thing} are shared by {a} children evenly. How many {thing} does each child get?",
            "There are {n} {thing} for {a} tables. Each table gets the same. How many {thing} are on each table?",
        ],
        ["Each one gets [c={n}/{a}] {thing}."],
        "n=a*b",
    ),
    template(
        "how_many_bags",
        "a:S b:T",
        [
            "{P} has {n} {thing} and puts {a} in each bag. How many bags does {he} fill?",
            "A bag holds {a} {thing}. How many bags are needed for {n} {thing}?",
            "{n} {thing} are packed {a} to a bag. How many bags are there?",
        ],
        ["There are [c={n}/{a}] bags."],
        "n=a*b",
    ),
    template(
        "eat_then_share",
        "a:S b:T d:S",
        [
            "{P} bakes {n} {thing}. {He} keeps {d} and shares the rest evenly among {a} friends. How many {thing} does each friend get?",
            "Of {n} {thing}, {d} are bad. The others are put into {a} bags evenly. How many {thing} go into each bag?",
            "{P} has {n} {thing} and gives {d} to {Q}. {He} packs the rest into {a} equal boxes. How many {thing} are in one box?",
        ],
        ["There are [c={n}-{d}] {thing} to share.", "Each one gets [e={c}/{a}] {thing}."],
        "n=a*b+d",
    ),
    template(
        "pool_then_share",
        "a:S b:T d:T",
        [
            "{P} has {m} {thing} and {Q} has {d}. They put them together and share them among {a} children evenly. How many {thing} does each child get?",
            "{m} red and {d} blue {thing} are mixed and put into {a} bags evenly. How many {thing} are in each bag?",
            "{P} picks {m} {thing} and {Q} picks {d}. They fill {a} baskets evenly. How many {thing} are in each basket?",
        ],
        ["Together there are [c={m}+{d}] {thing}.", "Each one gets [e={c}/{a}] {thing}."],
        "m=a*b-d",
    ),
    template(
        "repack",
        "a:S b:S d:S",
        [
            "{P} has {m} boxes of {d} {thing}. {He} repacks them into boxes of {a}. How many boxes does {P} need?",
            "There are {m} bags with {d} {thing} each. How many bags of {a} {thing} can be made from them?",
            "{P} empties {m} packs of {d} {thing} and makes new packs of {a}. How many new packs are there?",
        ],
        ["There are [c={m}*{d}] {thing}.", "That makes [e={c}/{a}] boxes."],
        "m=a*b",
    ),
    template(
        "half_gone",
        "a:T b:T",
        [
            "{P} has {n} {thing}. {He} gives half of them to {Q} and then finds {b} more. How many {thing} does {P} have?",
            "Half of {n} {thing} are sold, and then {b} new ones come in. How many {thing} are there now?",
            "{P} loses half of {his} {n} {thing} and buys {b} more. How many {thing} does {he} have at the end?",
        ],
        ["Half is [c={n}/2] {thing}.", "Then there are [e={c}+{b}] {thing}."],
        "n=2*a",
    ),
    template(
        "third_gone",
        "a:T b:S",
        [
            "{P} has {n} {thing}. A third of them are red, and {P} gives away {b} of the red ones. How many red {thing} are left?",
            "One third of {n} {thing} go to {Q}, who loses {b} of them. How many {thing} does {Q} have?",
            "{Q} gets a third of the {n} {thing} of {P} and then gives {b} back. How many {thing} does {Q} keep?",
        ],
        ["A third is [c={n}/3] {thing}.", "Then there are [e={c}-{b}] {thing}."],
        "n=3*a",
    ),
    template(
        "quarter_rest",
        "a:T",
        [
            "A quarter of {n} {thing} are blue. How many {thing} are not blue?",
            "{P} sells a quarter of {his} {n} {thing}. How many {thing} does {P} still have?",
            "{P} has {n} {thing} and gives a quarter of them to {Q}. How many {thing} stay with {P}?",
        ],
        ["A quarter is [c={n}/4] {thing}.", "The rest is [d={n}-{c}] {thing}."],
        "n=4*a",
    ),
    template(
        "teams",
        "a:S b:S d:T",
        [
            "{m} girls and {d} boys make teams of {a}. How many teams are there?",
            "A school has {m} girls and {d} boys who play ball. Each team has {a} children. How many teams can be made?",
            "{P} splits {m} girls and {d} boys into groups of {a}. How many groups does {he} get?",
        ],
        ["There are [c={m}+{d}] children.", "They make [e={c}/{a}] teams."],
        "m=a*(b+d)-d",
    ),
    template(
        "share_and_eat",
        "a:S b:S d:S",
        [
            "{P} shares {n} {thing} evenly among {a} children. {Q}, one of them, uses {d}. How many {thing} does {Q} have left?",
            "{a} children split {n} {thing} evenly. One child then loses {d}. How many {thing} does that child have?",
            "{Q} gets an equal share when {n} {thing} go to {a} people, and gives {d} away. How many {thing} does {Q} keep?",
        ],
        ["A share is [c={n}/{a}] {thing}.", "Then there are [e={c}-{d}] {thing}."],
        "n=a*(b+d)",
    ),
    template(
        "buses_needed",
        "b:S d:T e:S",
        [
            "{e} classes of {m} children go on a trip. Each bus holds {d} children. How many full buses do they need?",
            "A trip has {e} groups with {m} children each. One bus takes {d} children. How many buses are filled?",
            "There are {m} children in each of {e} classes. They ride in buses for {d}. How many buses are full?",
        ],
        ["There are [c={e}*{m}] children.", "They fill [f={c}/{d}] buses."],
        "m=d*b",
    ),
)
