"""Bytes as people read them.

Owns nothing but the spelling.
"""

__all__ = ["amount", "grouped"]

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def amount(nbytes: int) -> str:
    """Return bytes in the largest unit that keeps a digit before the point, such as 155.42 GiB."""
    value, unit = float(nbytes), 0
    while abs(value) >= 1024 and unit < len(UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{nbytes} B" if unit == 0 else f"{value:.2f} {UNITS[unit]}"


def grouped(number: int) -> str:
    """Return a whole number in groups of three digits, such as 166 878 536 440."""
    return f"{number:,}".replace(",", " ")
