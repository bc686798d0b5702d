"""Problems of gathering, losing and counting things."""
# ruff: noqa: E501 - a phrasing is one sentence and reads best on one line

from specmatrix.matrix.zoo.templates.form import template

COUNTING = (
    template(
        "two_piles",
        "a:H b:H",
        [
            "{P} has {a} {thing} and buys {b} more. How many {thing} does {P} have now?",
            "{P} owned {a} {thing}. Then {he} got {b} more {thing}. How many {thing} are there in all?",
            "There were {a} {thing} in the room until {P} brought {b} more. How many {thing} are in the room now?",
        ],
        ["{P} has [c={a}+{b}] {thing}."],
    ),
    template(
        "give_away",
        "a:H b:T",
        [
            "{P} had {a} {thing}. {He} gave {b} of them to {Q}. How many {thing} are left?",
            "Of {his} {a} {thing}, {P} gives {b} to {Q}. How many {thing} does {P} keep?",
            "{Q} takes {b} of the {a} {thing} that {P} has. How many {thing} remain with {P}?",
        ],
        ["{P} has [c={a}-{b}] {thing} left."],
    ),
    template(
        "gain_then_lose",
        "a:T b:T d:T",
        [
            "{P} had {a} {thing}, found {b} more and then lost {d}. How many {thing} does {P} have?",
            "{P} started with {a} {thing}. {He} won {b} {thing} and gave {d} to {Q}. How many {thing} are left?",
            "A box held {a} {thing}. {P} put in {b} and {Q} took out {d}. How many {thing} are in the box?",
        ],
        ["First there are [c={a}+{b}] {thing}.", "Then there are [e={c}-{d}] {thing}."],
    ),
    template(
        "three_days",
        "a:T b:T d:T",
        [
            "{P} picked {a} {thing} on Monday, {b} on Tuesday and {d} on Friday. How many {thing} did {P} pick?",
            "On three days {P} collected {a}, {b} and {d} {thing}. How many {thing} is that in total?",
            "{P} counted {a} {thing} in the first hour, {b} in the second and {d} in the third. How many {thing} were counted?",
        ],
        ["The first two make [c={a}+{b}] {thing}.", "All three make [e={c}+{d}] {thing}."],
    ),
    template(
        "rows_of_chairs",
        "a:S b:T",
        [
            "A hall has {a} rows with {b} chairs in each row. How many chairs are in the hall?",
            "{P} sets up {a} rows of {b} chairs. How many chairs does {he} set up?",
            "There are {b} chairs in every row and {a} rows. How many chairs are there?",
        ],
        ["There are [c={a}*{b}] chairs."],
    ),
    template(
        "boxes_and_loose",
        "a:S b:T d:T",
        [
            "{P} has {a} boxes with {b} {thing} each and {d} loose {thing}. How many {thing} does {P} have?",
            "There are {b} {thing} in each of {a} boxes. {P} also finds {d} {thing} on the floor. How many {thing} is that?",
            "{P} fills {a} boxes with {b} {thing} each, and {d} {thing} do not fit. How many {thing} were there?",
        ],
        ["The boxes hold [c={a}*{b}] {thing}.", "With the rest it is [e={c}+{d}] {thing}."],
    ),
    template(
        "boxes_broken",
        "a:S b:T d:S",
        [
            "A truck brings {a} crates of {b} {thing}. {d} {thing} are broken. How many {thing} are whole?",
            "{P} orders {a} crates with {b} {thing} in each, but {d} of them arrive broken. How many good {thing} does {P} get?",
            "Each of {a} crates holds {b} {thing}. {P} throws out {d} bad ones. How many {thing} are left?",
        ],
        ["The crates hold [c={a}*{b}] {thing}.", "Without the broken ones it is [e={c}-{d}] {thing}."],
    ),
    template(
        "two_kinds_of_box",
        "a:S b:T d:S e:T",
        [
            "{P} packs {a} bags of {b} {thing} and {d} bags of {e} {thing}. How many {thing} does {P} pack?",
            "There are {a} small boxes with {b} {thing} each and {d} large boxes with {e} {thing} each. How many {thing} are there?",
            "{P} buys {a} packs of {b} {thing}. {Q} buys {d} packs of {e} {thing}. How many {thing} do they buy together?",
        ],
        [
            "The first kind makes [f={a}*{b}] {thing}.",
            "The second kind makes [g={d}*{e}] {thing}.",
            "Together it is [h={f}+{g}] {thing}.",
        ],
    ),
    template(
        "bus_stops",
        "a:T b:S d:S e:S",
        [
            "A bus carries {a} people. At the next stop {b} get off and {d} get on. Then {e} more get on. How many people are on the bus?",
            "{a} people are on a train. {b} leave, {d} come in, and later {e} come in. How many people are on the train?",
            "There were {a} people in a boat. {b} went out, {d} went in, and then {e} more went in. How many people are in the boat?",
        ],
        [
            "After the first people leave there are [f={a}-{b}].",
            "Then there are [g={f}+{d}].",
            "At last there are [h={g}+{e}] people.",
        ],
    ),
    template(
        "pages_left",
        "a:H b:T d:T",
        [
            "A book has {a} pages. {P} read {b} pages yesterday and {d} pages today. How many pages are left?",
            "{P} wants to read {a} pages. {He} has read {b} pages and then {d} more. How many pages does {P} still have to read?",
            "{P} is reading a book of {a} pages. On Sunday {he} read {b} and on Monday {d} pages. How many pages remain?",
        ],
        ["{P} has read [c={b}+{d}] pages.", "There are [e={a}-{c}] pages left."],
    ),
    template(
        "seats_free",
        "a:S b:T d:T",
        [
            "A theater has {a} rows of {b} seats. {d} people come to the show. How many seats stay empty?",
            "There are {a} rows with {b} seats each in a cinema, and {d} tickets are sold. How many seats are free?",
            "{d} people sit in a hall with {a} rows of {b} seats. How many seats are not taken?",
        ],
        ["There are [c={a}*{b}] seats.", "So [e={c}-{d}] seats are empty."],
    ),
    template(
        "missing_part",
        "a:H b:T d:T",
        [
            "{P} and two friends have {a} {thing} together. One friend has {b} and the other has {d}. How many {thing} does {P} have?",
            "Three children share a heap of {a} {thing}. {Q} holds {b}, another child holds {d}, and {P} holds the rest. How many {thing} does {P} hold?",
            "A box has {a} {thing}: {b} are red, {d} are blue and the rest are green. How many {thing} are green?",
        ],
        ["The known parts make [c={b}+{d}] {thing}.", "The rest is [e={a}-{c}] {thing}."],
    ),
)
