"""Problems of speed, time, work rates and recipes."""
# ruff: noqa: E501 - a phrasing is one sentence and reads best on one line

from specmatrix.matrix.zoo.templates.form import template

RATES = (
    template(
        "distance",
        "a:S b:T",
        [
            "A car goes {b} miles in an hour. How many miles does it go in {a} hours?",
            "{P} drives at {b} miles per hour for {a} hours. How far does {P} drive?",
            "A train runs {b} miles every hour. How far does it run in {a} hours?",
        ],
        ["The way is [c={a}*{b}] miles."],
    ),
    template(
        "distance_left",
        "a:S b:T d:T",
        [
            "A trip is {n} miles long. {P} drives {b} miles per hour for {a} hours. How many miles are left?",
            "{P} has to drive {n} miles. After {a} hours at {b} miles per hour, how many miles remain?",
            "A train runs {a} hours at {b} miles per hour on a line of {n} miles. How many miles are still to go?",
        ],
        ["{a} hours make [c={a}*{b}] miles.", "There are [e={n}-{c}] miles left."],
        "n=a*b+d",
    ),
    template(
        "two_legs",
        "a:S b:T d:S e:T",
        [
            "{P} drives {a} hours at {b} miles per hour and {d} hours at {e} miles per hour. How far does {he} drive?",
            "A train runs {b} miles an hour for {a} hours, then {e} miles an hour for {d} hours. How many miles does it run?",
            "{P} rides {b} miles on each of {a} days and {e} miles on each of {d} days. How many miles is that?",
        ],
        [
            "The first part is [f={a}*{b}] miles.",
            "The second part is [g={d}*{e}] miles.",
            "Together it is [h={f}+{g}] miles.",
        ],
    ),
    template(
        "time_needed",
        "a:S b:T",
        [
            "{P} types {b} words in a minute. How many minutes does {he} need for {n} words?",
            "A machine makes {b} parts an hour. How many hours does it take to make {n} parts?",
            "{n} miles at {b} miles per hour: how many hours does {P} drive?",
        ],
        ["It takes [c={n}/{b}]."],
        "n=a*b",
    ),
    template(
        "two_machines",
        "a:T b:T d:S",
        [
            "One machine makes {a} parts an hour and another makes {b}. How many parts do they make in {d} hours?",
            "{P} folds {a} shirts an hour and {Q} folds {b}. How many shirts do they fold in {d} hours?",
            "Two taps give {a} and {b} liters a minute. How many liters flow in {d} minutes?",
        ],
        ["In one it is [c={a}+{b}].", "In {d} it is [e={c}*{d}]."],
    ),
    template(
        "tank_leak",
        "a:T b:S d:S",
        [
            "A tap fills {m} liters a minute into a tank, and {b} liters a minute leak out. How many liters are in the tank after {d} minutes?",
            "{P} gains {m} points each round and loses {b} each round. How many points does {P} have after {d} rounds?",
            "A snail climbs {m} feet each day and slides back {b} feet each night. How high is it after {d} days?",
        ],
        ["Each time it is [c={m}-{b}] more.", "After {d} it is [e={c}*{d}]."],
        "m=a+b",
    ),
    template(
        "weekly_practice",
        "a:T b:S d:S",
        [
            "{P} runs {a} minutes a day, {b} days a week. How many minutes does {he} run in {d} weeks?",
            "{P} writes {a} lines a day on {b} days of each week. How many lines does {P} write in {d} weeks?",
            "A shop sells {a} {thing} a day and opens {b} days a week. How many {thing} are sold in {d} weeks?",
        ],
        ["In a week it is [c={a}*{b}].", "In {d} weeks it is [e={c}*{d}]."],
    ),
    template(
        "feed_animals",
        "a:S b:S d:S",
        [
            "{a} cows eat {b} kilos of hay each per day. How many kilos do they eat in {d} days?",
            "{P} has {a} dogs and feeds each {b} cups a day. How many cups does {P} need for {d} days?",
            "Each of {a} horses drinks {b} buckets a day. How many buckets are needed for {d} days?",
        ],
        ["In a day it is [c={a}*{b}].", "In {d} days it is [e={c}*{d}]."],
    ),
    template(
        "stock_lasts",
        "a:S b:S d:S",
        [
            "{a} dogs eat {b} cups a day each. How many days do {n} cups last?",
            "{P} has {n} liters of water for {a} people. Each drinks {b} liters a day. For how many days is it enough?",
            "There are {n} kilos of hay for {a} cows, and each cow eats {b} kilos a day. How many days does the hay last?",
        ],
        ["In a day it is [c={a}*{b}].", "It lasts [e={n}/{c}] days."],
        "n=a*b*d",
    ),
    template(
        "recipe_scale",
        "a:S b:S d:S",
        [
            "{n} eggs make {a} cakes. How many eggs are needed for {d} cakes?",
            "{P} uses {n} cups of flour for {a} loaves. How many cups does {P} need for {d} loaves?",
            "{a} shirts cost ${n}. How much do {d} shirts cost?",
        ],
        ["For one it is [c={n}/{a}].", "For {d} it is [e={c}*{d}]."],
        "n=a*b",
    ),
    template(
        "minutes_left",
        "a:S b:S d:T",
        [
            "{P} has {n} minutes. {He} solves {a} tasks of {b} minutes each. How many minutes are left?",
            "A lesson lasts {n} minutes. {P} shows {a} pictures for {b} minutes each. How many minutes remain?",
            "{P} needs {b} minutes for each of {a} letters and has {n} minutes. How many minutes are free after that?",
        ],
        ["The work takes [c={a}*{b}] minutes.", "There are [e={n}-{c}] minutes left."],
        "n=a*b+d",
    ),
)
