import numpy as np

from sopr_fast.results.numbers import MISSING, Numbers, chance, number


def test_columns_have_the_decimals_that_distinguish_their_numbers():
    assert Numbers([0.0, 6000.0])(-1234.5) == "-1,234"
    assert Numbers([0.1, 0.2])(0.1234) == "0.123"
    assert [Numbers([-720.4, -155.25])(x) for x in (-720.4, -155.25, -0.00116)] == ["-720", "-155", "0"]
    assert [Numbers([-6.4, 6.4], errors)(6.432) for errors in ([0.23, 0.0, np.nan], [23.0], [0.0])] == [
        "6.43",
        "6",
        "6.4",
    ]
    assert Numbers([-1e4, -1.25, -1.5, -1.31])(-1e4) == "-10,000.000"  # which does not hide the digits of the others
    assert [Numbers([1e-9, 2e-9])(x) for x in (0.0, 1.5e-9)] == ["0.000000", "1.5e-09"]


def test_numbers_and_chances_as_text():
    assert Numbers([])(np.nan) == number(np.nan) == chance(np.nan) == MISSING
    assert [number(x) for x in (-0.001, 3.14159, 2.5e12)] == ["0.00", "3.14", "2.500e+12"]
    assert [chance(x) for x in (0, 0.01, 0.29, 0.899, 1)] == ["<1 %", "1 %", "29 %", "89 %", "over 99 %"]
