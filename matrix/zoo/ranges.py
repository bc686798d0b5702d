"""What numbers and words a problem may draw: the difficulty knobs of gsm-mini.

A problem has a level 0..5; each class letter has a range of whole numbers (both ends included) per level.
"""

LEVELS = 6

RANGES: dict[str, tuple[tuple[int, int], ...]] = {
    "G": ((2, 4), (2, 4), (2, 5), (2, 6), (2, 7), (2, 9)),
    "S": ((2, 5), (2, 9), (3, 12), (6, 19), (12, 49), (21, 99)),
    "T": ((5, 30), (11, 99), (21, 199), (101, 499), (201, 999), (1001, 4999)),
    "H": ((30, 120), (100, 499), (200, 999), (1000, 4999), (2001, 9999), (10001, 49999)),
}
PERCENT: tuple[int, ...] = (5, 10, 15, 20, 25, 30, 40, 50, 60, 75)

MEN = ("Adam", "Ben", "Carl", "Dan", "Eli", "Fred", "Gus", "Hugo", "Ivan", "Jack", "Ken", "Leo", "Max", "Ned", "Omar", "Paul", "Raj", "Sam", "Tom", "Will")
WOMEN = ("Amy", "Beth", "Cora", "Dora", "Emma", "Fay", "Gina", "Hana", "Ida", "Jane", "Kate", "Lily", "Mia", "Nora", "Olga", "Pam", "Rosa", "Sara", "Tina", "Zoe")
THINGS = (
    "apples", "balls", "beads", "bolts", "books", "buttons", "cards", "coins", "cookies", "cups", "dolls", "eggs", "flags", "flowers", "grapes",
    "keys", "kites", "lemons", "maps", "marbles", "melons", "nuts", "pears", "pens", "pencils", "plates", "plums", "rings", "rocks", "seeds",
    "shells", "spoons", "stamps", "stickers", "tapes", "toys",
)
