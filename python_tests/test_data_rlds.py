"""RLDS datasets, read without TensorFlow, from files that TensorFlow Datasets 4.9.10 prepared.

Episode e of the files has 4 + e steps; step i has the observation (10e + i, 10e + i + 1, 10e + i + 2), the action
(i, -e) and the reward 100e + i. Episodes 0 and 2 end in terminal states. They are stored in the order 0, 2, 1.
"""

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

import sopr_fast
from sopr_fast.inputs.logs import describe, files, load, load_states
from sopr_fast.runtime.records import masked_crc

SETS = Path(__file__).parent / "rlds"
PLAIN, NESTED = SETS / "walk" / "1.0.0", SETS / "walk_dict" / "1.0.0"
STEPS = [(e, i) for e in (0, 2, 1) for i in range(3 + e)]  # without the last step of each episode
STATES = np.array([[10 * e + i + k for k in range(3)] for e, i in STEPS], np.float32)


def copy(source, folder):
    shutil.copytree(source, folder)
    (file,) = folder.glob("*.tfrecord*")
    return file


def test_steps_become_transitions():
    log = load(PLAIN)
    np.testing.assert_array_equal(log.states, STATES)
    np.testing.assert_array_equal(log.next_states, STATES + 1)
    np.testing.assert_array_equal(log.actions, [(i, -e) for e, i in STEPS])
    np.testing.assert_array_equal(log.rewards, [100 * e + i for e, i in STEPS])
    np.testing.assert_array_equal(log.episodes, [0, 3, 8, 12])
    np.testing.assert_array_equal(np.flatnonzero(log.terminals), [2, 7])
    np.testing.assert_array_equal(np.flatnonzero(log.timeouts), [11])


def test_one_file_and_states_alone():
    (file,) = PLAIN.glob("*.tfrecord*")
    np.testing.assert_array_equal(load(file).states, STATES)
    np.testing.assert_array_equal(np.asarray(load_states(PLAIN)), STATES)
    assert describe(PLAIN).episodes == 3
    assert len(sopr_fast.Subsets.draw(PLAIN, 1, size=8, clusters=2).states) == 8


def test_numbers_that_exceed_the_free_memory_are_refused_though_their_file_does_not(monkeypatch):
    (file,) = PLAIN.glob("*.tfrecord*")
    size, held = file.stat().st_size, sum(10 * (4 + e) * 8 for e in range(3))  # at most, if all numbers have 8 bytes
    monkeypatch.setattr(files, "free_memory", lambda: size)
    with pytest.raises(MemoryError, match=r"bytes when read, larger than the free memory"):
        load(file)
    monkeypatch.setattr(files, "free_memory", lambda: 10 * held)
    assert len(load(file).states) == 12


def test_parts_of_nested_observations_are_named():
    columns = {"states": ["observation/position", "observation/speed"]}
    np.testing.assert_array_equal(np.asarray(load_states(NESTED, columns=columns["states"])), STATES)
    log = load(NESTED, columns={**columns, "next_states": columns["states"]})
    np.testing.assert_array_equal(log.states, STATES)
    with pytest.raises(ValueError, match=r"no array 'observations' .* observation/position, observation/speed"):
        load(NESTED)


def test_a_part_named_as_states_counts_as_such(tmp_path):
    file = copy(NESTED, tmp_path / "set")
    description = tmp_path / "set" / "features.json"
    description.write_text(description.read_text().replace('"speed"', '"state"'))
    file.write_bytes(rewritten(file.read_bytes(), b"steps/observation/speed", b"steps/observation/state"))
    log = load(tmp_path / "set")
    np.testing.assert_array_equal(log.states, STATES[:, 2:])
    np.testing.assert_array_equal(log.next_states, STATES[:, 2:] + 1)


def rewritten(content, old, new):
    """Replace a name of the same length in every record, and renew the check sums."""
    place, parts = 0, []
    while place < len(content):
        (length,) = struct.unpack("<Q", content[place : place + 8])
        record = content[place + 12 : place + 12 + length].replace(old, new)
        parts += [content[place : place + 12], record, struct.pack("<I", masked_crc(record))]
        place += 16 + length
    return b"".join(parts)


def field(number, content):
    """Return a field of a protobuf message that holds fewer than 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


def write_episodes(file, episodes):
    """Write episodes, each a mapping from name to `tf.train.Feature`."""
    parts = []
    for episode in episodes:
        entries = [field(1, field(1, f"steps/{name}".encode()) + field(2, value)) for name, value in episode.items()]
        record = field(1, b"".join(entries))
        length = struct.pack("<Q", len(record))
        parts += [length, struct.pack("<I", masked_crc(length)), record, struct.pack("<I", masked_crc(record))]
    file.write_bytes(b"".join(parts))


def test_integers_are_signed_packed_or_not_and_episodes_may_be_empty(tmp_path):
    file = copy(PLAIN, tmp_path / "set")
    kept = {"observation": {"tensor": {"shape": {}, "dtype": "int64"}}, "is_last": {"tensor": {"shape": {}}}}
    edit(lambda features: (steps(features).clear(), steps(features).update(kept)))(tmp_path / "set", file)
    minus_2 = b"\xfe" + b"\xff" * 8 + b"\1"
    packed, single = field(3, field(1, minus_2 + b"\5")), field(3, b"\x08" + minus_2 + b"\x08\5")
    flags = field(3, field(1, b"\0\1"))
    episodes = [(packed, flags), (b"", b""), (single, flags)]
    write_episodes(file, [{"observation": values, "is_last": ends} for values, ends in episodes])
    assert np.asarray(load_states(tmp_path / "set")).tolist() == [[-2], [-2]]


def test_the_train_split_is_read_where_there_are_several(tmp_path):
    file = copy(PLAIN, tmp_path / "set")
    shutil.copy(file, file.with_name(file.name.replace("train", "test")))
    assert len(load(tmp_path / "set")) == len(STATES)


def edit(change):
    def damage(folder, file):
        description = folder / "features.json"
        content = json.loads(description.read_text())
        change(content["featuresDict"]["features"])
        description.write_text(json.dumps(content))

    return damage


def steps(features):
    return features["steps"]["sequence"]["feature"]["featuresDict"]["features"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder, file: file.write_bytes(file.read_bytes()[:-30]), r"tfrecord.*: .*is cut short"),
        (lambda folder, file: file.write_bytes(b"\1" + file.read_bytes()[1:]), "check sum of the record at byte 0"),
        (lambda folder, file: file.rename(folder / "walk-train.array_record-00000-of-00001"), r"but \.array_record"),
        (lambda folder, file: (folder / "features.json").unlink(), r"features\.json: no such file|expected states"),
        (lambda folder, file: (folder / "features.json").write_text("{"), "damaged, cut short, or not the description"),
        (edit(lambda features: features.pop("steps")), "no steps of episodes, so not an RLDS dataset"),
        (edit(lambda features: steps(features).pop("is_last")), "hold no numbers named 'is_last'"),
        (
            edit(lambda features: steps(features)["reward"]["tensor"].update(encoding="zlib")),
            "'reward' is stored in the encoding 'zlib'; prepare the dataset without it",
        ),
        (
            edit(lambda features: steps(features)["observation"]["tensor"].update(shape={"dimensions": ["5"]})),
            "TFRecord file of episodes",
        ),
    ],
)
def test_damaged_sets_are_refused_by_name(tmp_path, damage, message):
    file = copy(PLAIN, tmp_path / "set")
    damage(tmp_path / "set", file)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as raised:
        load_states(tmp_path / "set")
    assert str(tmp_path / "set") in str(raised.value)
