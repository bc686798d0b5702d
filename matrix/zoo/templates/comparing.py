"""Problems of more, fewer, times as many, and ages."""
# ruff: noqa: E501 - a phrasing is one sentence and reads best on one line

from specmatrix.matrix.zoo.templates.form import template

COMPARING = (
    template(
        "more_than",
        "a:H b:T",
        [
            "{P} has {a} {thing}. {Q} has {b} more than {P}. How many {thing} do they have together?",
            "{Q} owns {b} {thing} more than {P}, who owns {a}. How many {thing} do both own?",
            "{P} found {a} {thing} and {Q} found {b} more than that. How many {thing} did they find together?",
        ],
        ["{Q} has [c={a}+{b}] {thing}.", "Together they have [d={a}+{c}] {thing}."],
    ),
    template(
        "fewer_than",
        "a:H b:T",
        [
            "{P} has {a} {thing}. {Q} has {b} fewer than {P}. How many {thing} do they have together?",
            "{Q} owns {b} {thing} fewer than {P}, who owns {a}. How many {thing} do both own?",
            "{P} sold {a} {thing} and {Q} sold {b} fewer. How many {thing} did they sell together?",
        ],
        ["{Q} has [c={a}-{b}] {thing}.", "Together they have [d={a}+{c}] {thing}."],
    ),
    template(
        "times_as_many",
        "a:T b:S",
        [
            "{P} has {a} {thing}. {Q} has {b} times as many. How many {thing} do they have together?",
            "{Q} owns {b} times as many {thing} as {P}, who owns {a}. How many {thing} do both own?",
            "{P} caught {a} fish and {Q} caught {b} times that number. How many fish did they catch together?",
        ],
        ["{Q} has [c={a}*{b}].", "Together it is [d={a}+{c}]."],
    ),
    template(
        "times_difference",
        "a:T b:S",
        [
            "{P} has {a} {thing}. {Q} has {b} times as many. How many more {thing} does {Q} have than {P}?",
            "{Q} reads {b} times as many pages as {P}, who reads {a}. How many more pages does {Q} read?",
            "{P} scored {a} points and {Q} scored {b} times as many. By how many points did {Q} win?",
        ],
        ["{Q} has [c={a}*{b}].", "The difference is [d={c}-{a}]."],
    ),
    template(
        "times_plus",
        "a:T b:S d:T",
        [
            "{Q} has {d} more than {b} times the number of {thing} that {P} has. {P} has {a}. How many {thing} does {Q} have?",
            "{P} has {a} {thing}. {Q} has {b} times as many and {d} more. How many {thing} does {Q} have?",
            "Take {b} times the {a} {thing} of {P} and add {d}: that is what {Q} has. How many {thing} does {Q} have?",
        ],
        ["{b} times as many is [c={a}*{b}].", "With {d} more it is [e={c}+{d}]."],
    ),
    template(
        "times_minus",
        "a:T b:S d:S",
        [
            "{Q} has {d} fewer than {b} times the number of {thing} that {P} has. {P} has {a}. How many {thing} does {Q} have?",
            "{P} has {a} {thing}. {Q} had {b} times as many but lost {d}. How many {thing} does {Q} have?",
            "{P} is {a} years old. A tree is {d} years younger than {b} times that age. How old is the tree?",
        ],
        ["{b} times as many is [c={a}*{b}].", "With {d} fewer it is [e={c}-{d}]."],
    ),
    template(
        "three_people_chain",
        "a:T b:T d:S",
        [
            "{P} has {a} {thing}. {Q} has {b} more than {P}. {R} has {d} times as many as {Q}. How many {thing} does {R} have?",
            "{Q} has {b} {thing} more than {P}, and {R} has {d} times what {Q} has. {P} has {a} {thing}. How many {thing} does {R} have?",
            "{P} owns {a} {thing}, {Q} owns {b} more, and {R} owns {d} times as many as {Q}. How many {thing} does {R} own?",
        ],
        ["{Q} has [c={a}+{b}] {thing}.", "{R} has [e={c}*{d}] {thing}."],
    ),
    template(
        "three_people_sum",
        "a:T b:S d:T",
        [
            "{P} has {a} {thing}. {Q} has {b} times as many, and {R} has {d} more than {Q}. How many {thing} do all three have?",
            "{Q} has {b} times as many {thing} as {P}. {R} has {d} more than {Q}. {P} has {a}. How many {thing} is that in all?",
            "{P} picks {a} {thing}, {Q} picks {b} times as many and {R} picks {d} more than {Q}. How many {thing} do they pick?",
        ],
        [
            "{Q} has [c={a}*{b}] {thing}.",
            "{R} has [e={c}+{d}] {thing}.",
            "{P} and {Q} have [f={a}+{c}] {thing}.",
            "All have [g={f}+{e}] {thing}.",
        ],
    ),
    template(
        "age_later",
        "a:T b:S d:T",
        [
            "{P} is {a} years old. {Q} is {b} years older. How old will {Q} be in {d} years?",
            "{Q} is {b} years older than {P}, who is {a}. How old is {Q} {d} years from now?",
            "In {d} years, how old will {Q} be if {P} is {a} now and {Q} is {b} years older than {P}?",
        ],
        ["{Q} is [c={a}+{b}] now.", "Later {Q} will be [e={c}+{d}]."],
    ),
    template(
        "age_multiple",
        "a:T b:S d:S",
        [
            "{P} is {a} years old. The grandfather of {P} is {b} times as old. How old was he {d} years ago?",
            "A house is {b} times as old as {P}, who is {a}. How old was the house {d} years ago?",
            "{Q} is {b} times as old as {P}. {P} is {a}. What was the age of {Q} {d} years ago?",
        ],
        ["Now the age is [c={a}*{b}].", "It was [e={c}-{d}]."],
    ),
    template(
        "height_gap",
        "a:H b:T d:T",
        [
            "A tower is {a} feet high. A tree is {b} feet lower, and a house is {d} feet lower than the tree. How high is the house?",
            "{P} jumps {a} inches. {Q} jumps {b} inches less and {R} jumps {d} inches less than {Q}. How far does {R} jump?",
            "Rope one is {a} feet long. Rope two is {b} feet shorter, and rope three is {d} feet shorter than rope two. How long is rope three?",
        ],
        ["The second is [c={a}-{b}].", "The third is [e={c}-{d}]."],
    ),
    template(
        "half_as_many",
        "a:T b:T",
        [
            "{P} has {n} {thing} and {Q} has half as many. {R} has {b} more than {Q}. How many {thing} does {R} have?",
            "{Q} has half as many {thing} as {P}, who has {n}. {R} has {b} more than {Q}. How many {thing} does {R} have?",
            "{P} sold {n} {thing}, {Q} sold half of that, and {R} sold {b} more than {Q}. How many {thing} did {R} sell?",
        ],
        ["{Q} has [c={n}/2] {thing}.", "{R} has [d={c}+{b}] {thing}."],
        "n=2*a",
    ),
)
