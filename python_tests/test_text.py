import pytest

from sopr_fast.runtime.text import escaped_errors, printable, to_cell


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
    assert printable("abcdefg", 6) == "ab…efg"
    assert printable("abcd\n", 5) == r"ab…\n"


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ValueError("a\x1b"), r"a\x1b"),
        (KeyError("a\x1b"), r"'a\x1b'"),
        (ImportError("a\x1b", name="module"), r"a\x1b"),
        (OSError("a\x1b"), r"a\x1b"),
        (OSError(2, "a\x1b", "b\x1b"), r"[Errno 2] a\x1b: 'b\x1b'"),
    ],
    ids=repr,
)
def test_messages_of_errors_of_all_types_are_escaped_once(error, shown):
    with pytest.raises(type(error)) as caught, escaped_errors():
        raise error
    assert str(caught.value) == shown


def test_a_cell_is_no_formula():
    names = ["=HYPERLINK(1)", "+1", "-1", "@SUM(1)", "a=1", "a\x1b"]
    assert [to_cell(name) for name in names] == ["'=HYPERLINK(1)", "'+1", "'-1", "'@SUM(1)", "a=1", r"a\x1b"]
