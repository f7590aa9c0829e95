import pytest
import torch
from support import reference

# Known answers of Random123 for philox4x32-10: counter, key, result.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return [int(word, 16) for word in text.split()]


def multiplier(seed, step, threshold, level, layer, site, head, segment, row, column):
    place = level << 24 | layer << 16 | site << 12 | head
    key, counter = (seed % 2**32, step % 2**32), (column // 8, row, segment % 2**32, place)
    bits = [int(word) for word in reference.philox(*map(torch.tensor, key + counter))]
    draw = bits[column % 8 // 2] >> (16 * (column % 2)) & 0xFFFF
    return 0.0 if draw < threshold else 65536 / (65536 - threshold)


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_philox_known_answers(counter, key, result):
    tensors = [torch.tensor(word) for word in words(key) + words(counter)]
    assert [int(word) for word in reference.philox(*tensors)] == words(result)


@pytest.mark.parametrize(("probability", "threshold"), [(0.1, 6554), (0.5, 32768), (1e-6, 0), (0.999999, 65536)])
def test_dropout_mask_matches_integers(probability, threshold, device):
    seed, step = -3, 2**40 + 17
    rng = torch.tensor([seed, step], device=device)
    segment = torch.tensor([0, 0, 2**32 + 5, 7], device=device)
    row = torch.tensor([0, 1, 16383, 2], device=device)
    head = torch.tensor([0, 1, 2, 11], device=device)
    mask = reference.dropout_mask(
        segment, row, 19, rng=rng, probability=probability, level=1, layer=5, site=3, head=head
    )
    assert mask.shape == (4, 19) and mask.dtype == torch.float32
    expected = [
        [0.0 if threshold == 65536 else multiplier(seed, step, threshold, 1, 5, 3, h, s, r, c) for c in range(19)]
        for s, r, h in zip(segment.tolist(), row.tolist(), head.tolist(), strict=True)
    ]
    assert torch.equal(mask.cpu(), torch.tensor(expected))
