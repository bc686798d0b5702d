"""Numbers as words, for every output."""


def count(number: int, noun: str) -> str:
    """`1 cell`, `3 cells`, `12,000 cells`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
