import pytest

from sopr_fast.runtime.text import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain name_1", "plain name_1"),
        ("größe 寸法 🙂", "größe 寸法 🙂"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\x9b31m", r"\x9b31m"),
        ("abc\u202egnp", r"abc\u202egnp"),
        ("zero\u200bwidth", r"zero\u200bwidth"),
        ("lone \udc80", r"lone \udc80"),
    ],
)
def test_characters_that_do_not_print_are_escaped(text, shown):
    assert printable(text) == shown and shown.isprintable()


def test_long_text_is_cut():
    assert printable("abcdef", 6) == "abcdef"
    assert printable("abcdefg", 6) == "abcde…"
    assert printable("abcd\n", 5) == "abcd…"
