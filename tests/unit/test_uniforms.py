"""Uniform numbers: known answers of the generator, range, and independence of their keys."""

from itertools import product

import pytest

from deskside.uniforms import Purpose, philox, uniform

ALL = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ALL, ALL, ALL, ALL), (ALL, ALL), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, int, int, int]
) -> None:
    assert philox(counter, key) == words


def test_every_key_gives_its_own_number() -> None:
    keys = list(product((0, 1, 2**40), (0, 1), (0, 1, 2, 500), Purpose, (0, 1, 4)))
    numbers = {uniform(*key) for key in keys}
    assert len(numbers) == len(keys)
    assert all(0 <= number < 1 for number in numbers)


def test_numbers_are_even() -> None:
    count = 20_000
    numbers = [uniform(5, 0, position, Purpose.TARGET) for position in range(count)]
    bins = [0] * 20
    for number in numbers:
        bins[int(number * 20)] += 1
    chi_square = sum((found - count / 20) ** 2 / (count / 20) for found in bins)
    assert chi_square < 43.8  # 19 degrees of freedom, p = 0.001
