from concurrent.futures import ThreadPoolExecutor

import pytest

import sopr_fast
from sopr_fast.runtime.options import Context, current


def test_options_nest_and_end_with_their_block():
    with sopr_fast.options(progress=False, batch_size=7):
        with pytest.raises(RuntimeError), sopr_fast.options(batch_size=9, device="cpu"):
            assert current() == Context(progress=False, batch_size=9, device="cpu")
            raise RuntimeError
        assert current() == Context(progress=False, batch_size=7)
    assert current() == Context()


def test_options_hold_in_their_own_thread():
    with sopr_fast.options(batch_size=3), ThreadPoolExecutor(1) as other:
        assert other.submit(current).result() == Context()
        assert current().batch_size == 3


@pytest.mark.parametrize(
    "option, message",
    [
        ({"batch_size": 0}, "batch_size must be an integer, 1 or more, got 0"),
        ({"batch_size": 0.5}, "batch_size must be an integer, 1 or more, got 0.5"),
    ],
)
def test_a_wrong_option_is_refused(option, message):
    with pytest.raises(ValueError, match=message), sopr_fast.options(**option):
        pass
