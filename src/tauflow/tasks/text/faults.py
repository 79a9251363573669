"""What other libraries raise, as a part of one of our own sentences."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or what kind it is where it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
