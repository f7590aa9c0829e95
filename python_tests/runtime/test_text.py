import pytest

from sopr_fast.runtime.text import escaped_errors, printable


def test_only_characters_that_do_not_print_are_escaped():
    assert printable("größe 寸法 🙂") == "größe 寸法 🙂"
    assert printable("a\n\t\x1b[31m\x9b \u202e \u200b \udc80") == r"a\n\t\x1b[31m\x9b \u202e \u200b \udc80"
    assert [printable("abcdef", 6), printable("abcdefg", 6), printable("abcd\n", 5)] == ["abcdef", "ab…efg", r"ab…\n"]


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
