"""Argument checks shared by the statistics: ValueError with the name, the value and what is allowed."""


def check_count(name: str, value: int, low: int, high: int | None = None) -> None:
    """ValueError unless low <= value (<= high)."""
    if value < low or (high is not None and value > high):
        allowed = f"at least {low}" if high is None else f"{low} to {high}"
        raise ValueError(f"{name} is {value}, allowed is {allowed}")


def check_confidence(value: float) -> None:
    """ValueError unless 0 < value < 1."""
    if not 0 < value < 1:
        raise ValueError(f"confidence is {value}, allowed is a fraction between 0 and 1")


def check_same_length(**lists: int) -> None:
    """ValueError unless all the named lengths are equal."""
    if len(set(lists.values())) > 1:
        raise ValueError("lengths differ: " + ", ".join(f"{name} has {length}" for name, length in lists.items()))
