"""Returns from data frames, from what runs leave behind, and with standard errors."""

import json
import re
import struct
import warnings

import numpy as np
import pytest
from problems import TINY, ladder, log, training_gains

import sopr_fast
from sopr_fast.inputs.returns import Returns, check_returns, read_returns
from sopr_fast.runtime.records import masked_crc

NAMES = ["ppo_1/best_model", "ppo_1/rl_model_2000_steps", "sac_1/final"]


def save_evaluations(folder, results, steps=None):
    """As Stable-Baselines3 2.9.2, common/callbacks.py, EvalCallback."""
    folder.mkdir(parents=True, exist_ok=True)
    steps = np.arange(1, len(results) + 1) * 1000 if steps is None else steps
    lengths = np.full(np.shape(results), 10)
    np.savez(folder / "evaluations.npz", timesteps=steps, results=results, ep_lengths=lengths)


def test_evaluations_beside_the_policies(tmp_path):
    save_evaluations(tmp_path / "ppo_1", np.array([[1.0, 3.0], [8.0, 12.0], [4.0, 4.0]]))
    save_evaluations(tmp_path / "sac_1", np.array([[5.0], [7.0]]))
    returns = read_returns(tmp_path, NAMES)
    assert returns == {"ppo_1/best_model": 10, "ppo_1/rl_model_2000_steps": 10, "sac_1/final": 7}
    assert returns.errors == {"ppo_1/best_model": 2, "ppo_1/rl_model_2000_steps": 2}
    np.testing.assert_array_equal(check_returns(str(tmp_path), NAMES), [10, 10, 7])
    one = tmp_path / "ppo_1" / "evaluations.npz"
    # Halfway between evaluations the nearest one counts; beyond the last one by more, none does.
    assert read_returns(one, ["model_1400", "rl_model_3500_steps", "x_3501_steps"]) == {
        "model_1400": 2,
        "rl_model_3500_steps": 4,
    }
    assert read_returns(tmp_path, ["ppo_1"]) == {"ppo_1": 4}


def test_the_nearest_folder_above_a_policy_counts(tmp_path):
    for folder, value in (("", 1.0), ("a", 2.0), ("a/b", 3.0)):
        save_evaluations(tmp_path / folder, np.array([[value]]))
    names = ["a/b/c/final", "a/final", "final"]
    assert read_returns(tmp_path, names) == dict(zip(names, [3, 2, 1], strict=True))


def test_half_the_largest_distance_between_evaluations_is_near(tmp_path):
    save_evaluations(tmp_path, np.array([[1.0], [5.0], [9.0]]), steps=np.array([1000, 2000, 6000]))
    path = tmp_path / "evaluations.npz"
    assert read_returns(path, ["model_3900", "model_4100", "x_8001_steps"]) == {"model_3900": 5, "model_4100": 9}


@pytest.mark.parametrize(
    "pattern",
    ["policy_{}", "actor_{}", "epoch_{}", "agent-{}", "ep{}", "{}", "model_{}_final", "td3_v2_{:06d}_seed3", "p.{}"],
)
def test_the_step_may_stand_anywhere_in_a_name(tmp_path, pattern):
    save_evaluations(tmp_path / "run", np.array([[1.0], [5.0], [9.0]]))
    names = [f"run/{pattern.format(step)}" for step in (1000, 1998, 3000)]
    assert read_returns(tmp_path, names) == dict(zip(names, [1, 5, 9], strict=True))


@pytest.mark.parametrize(
    ("stems", "expected"),
    [
        (["policy_7", "policy_9000", "best"], {"best": 5}),  # no evaluated step
        (["policy_1000_2000", "10k", "last_v3"], {"last_v3": 3}),
        (["policy_2000_2600"], {"policy_2000_2600": 5}),  # an evaluated step counts before one near another
        (["a", "b", "actor_1000"], {"actor_1000": 1}),  # only one can be the last
        (["elastic_7", "best_a", "best_b", "final_7"], {"final_7": 3}),
        (["HalfCheetah-v2", "best_7"], {"HalfCheetah-v2": 3, "best_7": 5}),
    ],
)
def test_names_that_say_too_little_get_no_evaluation(tmp_path, stems, expected):
    save_evaluations(tmp_path, np.array([[1.0], [5.0], [3.0]]))
    path = tmp_path / "evaluations.npz"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert read_returns(path, stems) == expected
    left_out = ", ".join(stem for stem in stems if stem not in expected)
    assert [str(each.message) for each in caught] == (left_out != "") * [
        f"{path}: policies are left out whose names do not say which evaluation is theirs: {left_out}; put steps into "
        "the names, as in 'model_3000'"
    ]


def test_a_run_that_is_named_otherwise_is_refused(tmp_path):
    save_evaluations(tmp_path / "runs" / "ppo_1", np.ones((2, 2)))
    with pytest.raises(
        ValueError, match=r"its returns lie in runs/ppo_1, and no policy does; pass the folder to which"
    ):
        read_returns(tmp_path, NAMES)
    with pytest.raises(ValueError, match=r"none: no returns: expected evaluations\.npz or TensorBoard event files"):
        (tmp_path / "none").mkdir()
        read_returns(tmp_path / "none", NAMES)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"timesteps": np.arange(2)}, "no array 'results', only timesteps.npy"),
        ({"timesteps": np.arange(2), "results": np.ones(2)}, r"timesteps \(2,\) and results \(2,\), expected"),
        ({"timesteps": np.arange(1), "results": np.array([[np.nan]])}, "its results are not finite"),
        ({"timesteps": np.arange(1), "results": np.array([[None]])}, "damaged, cut short, or not the evaluations"),
    ],
)
def test_broken_evaluations(tmp_path, arrays, message):
    np.savez(tmp_path / "evaluations.npz", **arrays)
    with pytest.raises(ValueError, match=rf"evaluations\.npz: .*{message}"):
        read_returns(tmp_path / "evaluations.npz", NAMES)
    content = (tmp_path / "evaluations.npz").read_bytes()
    (tmp_path / "evaluations.npz").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"evaluations\.npz: damaged, cut short"):
        read_returns(tmp_path / "evaluations.npz", NAMES)


def varint(value):
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def event(step, tag, value, *, as_tensor=False):
    """An `Event` of protobuf, by hand: fields 2 step, 5 summary; in it 1 value; in it 1 tag, 2 number or 8 tensor."""
    tag = tag.encode()
    content = b"\x0a" + varint(len(tag)) + tag
    if as_tensor:
        tensor = b"\x08\x01" + b"\x22\x04" + struct.pack("<f", value)
        content += b"\x42" + varint(len(tensor)) + tensor
    else:
        content += b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + varint(len(content)) + content
    message = b"\x09" + struct.pack("<d", 1.7e9) + b"\x10" + varint(step) + b"\x2a" + varint(len(summary)) + summary
    head = struct.pack("<Q", len(message))
    crc = [struct.pack("<I", masked_crc(part)) for part in (head, message)]
    return head + crc[0] + message + crc[1]


def test_the_check_sum_is_crc32c():
    # RFC 3720, B.4: CRC-32C of 32 bytes of zeros is 8A9136AA; TFRecord rotates it by 15 bits and adds a constant.
    assert masked_crc(bytes(32)) == ((0x8A9136AA >> 15 | 0x8A9136AA << 17) + 0xA282EAD8) & 0xFFFFFFFF


@pytest.mark.parametrize("as_tensor", [False, True])
def test_event_files(tmp_path, as_tensor):
    (tmp_path / "PPO_1").mkdir()
    path = tmp_path / "PPO_1" / "events.out.tfevents.1700000000.host.1.0"
    values = [(1000, 2.0), (2000, 9.0), (3000, 4.0)]
    events = [event(step, "eval/mean_reward", value, as_tensor=as_tensor) for step, value in values]
    events.insert(0, event(500, "rollout/ep_rew_mean", 100.0))  # first in the file, but no evaluation
    path.write_bytes(b"".join(events))
    names = ["PPO_1/best", "PPO_1/rl_model_1000_steps", "PPO_1/last"]
    assert read_returns(tmp_path, names) == dict(zip(names, [9, 2, 4], strict=True))
    assert read_returns(path, ["last"], tag="rollout/ep_rew_mean") == {"last": 100}
    with pytest.raises(ValueError, match="no tag 'loss'; it has eval/mean_reward, rollout/ep_rew_mean; choose one"):
        read_returns(path, ["last"], tag="loss")
    path.write_bytes(b"".join(events)[:-3])  # a run that goes on
    assert read_returns(path, ["last"]) == {"last": 9}
    damaged = bytearray(b"".join(events))
    damaged[-10] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"host\.1\.0: damaged, cut short, .* the check sum of the record at byte"):
        read_returns(path, ["last"])


def test_episodes_of_cleanrl_are_averaged(tmp_path):
    path = tmp_path / "events.out.tfevents.1.x"
    values = np.random.default_rng(0).normal(size=150).astype(np.float32)
    path.write_bytes(b"".join(event(10 * i, "charts/episodic_return", v) for i, v in enumerate(values)))
    returns = read_returns(path, ["a"])
    assert returns["a"] == pytest.approx(values[-100:].mean(dtype=float))
    assert returns.errors["a"] == pytest.approx(values[-100:].std(ddof=1, dtype=float) / 10)


def test_episodes_of_parallel_environments_all_count(tmp_path):
    path = tmp_path / "events.out.tfevents.1.x"
    values = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32) + np.arange(50, dtype=np.float32)[:, None]
    content = [event(1000 * i, "charts/episodic_return", v) for i, row in enumerate(values) for v in row]
    path.write_bytes(b"".join(content))
    returns = read_returns(path, ["a", "model_10000"])
    assert returns["a"] == pytest.approx(values.ravel()[-100:].mean(dtype=float))
    assert returns["model_10000"] == pytest.approx(values[:11].mean(dtype=float))  # 88 episodes


def test_episodes_of_a_run_begun_again_replace_those_from_its_first_step_on(tmp_path):
    former = [event(step, "charts/episodic_return", value) for step, value in [(1000, 8.0), (2000, 90.0)]]
    (tmp_path / "events.out.tfevents.1700000000.x").write_bytes(b"".join(former))
    (tmp_path / "events.out.tfevents.1700000001.x").write_bytes(event(2000, "charts/episodic_return", 7.0))
    assert read_returns(tmp_path, ["last"]) == {"last": 7.5}


@pytest.mark.parametrize(("first", "last", "best"), [(2000, 7, 8), (1000, 7, 7)])
def test_a_run_begun_again_in_its_folder_replaces_the_former(tmp_path, first, last, best):
    former = [event(step, "eval/mean_reward", value) for step, value in [(1000, 8.0), (2000, 90.0), (3000, 99.0)]]
    (tmp_path / "events.out.tfevents.1700000000.x").write_bytes(b"".join(former))
    (tmp_path / "events.out.tfevents.1700000001.x").write_bytes(event(first, "eval/mean_reward", 7.0))
    assert read_returns(tmp_path, ["last", "best"]) == {"last": last, "best": best}


def test_tensorboard_writes_what_is_read(tmp_path):
    writers = pytest.importorskip("tensorboardX")
    with writers.SummaryWriter(str(tmp_path / "run")) as writer:
        for step in range(5):
            writer.add_scalar("eval/mean_reward", step**2, 1000 * step)
            writer.add_histogram("weights", np.arange(10.0), step)
        writer.add_text("notes", "none")
    assert read_returns(tmp_path, ["run/model", "run/ckpt_2000"]) == {"run/model": 16, "run/ckpt_2000": 4}


def test_standard_errors_in_tables(tmp_path):
    pandas = pytest.importorskip("pandas")
    path = tmp_path / "r.csv"
    path.write_text("name,return,return_std,rollouts\na,1,2,4\nb,3,,\n")
    frame = pandas.read_csv(path)
    for source in (path, frame, frame.set_index("name")):
        returns = read_returns(source, ["a", "b"])
        assert returns == {"a": 1, "b": 3} and returns.errors == {"a": 1.0}
    path.write_text("policy,return_mean,return_se\na,1,0.5\n")
    assert read_returns(path, ["a"]).errors == {"a": 0.5}
    path.write_text("name,return,return_se\na,1,-1\n")
    with pytest.raises(ValueError, match=r"r\.csv, line 2: 'a' has the standard error -1, expected a number that is"):
        read_returns(path, ["a"])
    (tmp_path / "r.json").write_text(json.dumps({"a": [1, 3], "b": 2}))
    returns = read_returns(tmp_path / "r.json", ["a", "b"])
    assert returns == {"a": 2, "b": 2} and returns.errors == {"a": 1.0}


def test_single_rollouts_in_tables_have_the_error_of_others(tmp_path):
    pandas = pytest.importorskip("pandas")
    pooled = np.sqrt((2 * 4 + 1 * 16) / 3)
    table, lists = tmp_path / "r.csv", tmp_path / "r.json"
    table.write_text("name,return,return_std,rollouts\na,1,0,1\nb,2,2,3\nc,3,4,2\nd,4,,1\ne,5,,9\n")
    for source in (table, pandas.read_csv(table)):
        errors = read_returns(source, [*"abcde"]).errors
        assert errors == pytest.approx({"a": pooled, "b": 2 / np.sqrt(3), "c": 4 / np.sqrt(2), "d": pooled})
    rollouts = {"a": [1.0], "b": [0.0, 2.0, 4.0], "c": [-4.0, 4.0], "d": 4.0}
    lists.write_text(json.dumps(rollouts))
    pooled = np.sqrt((2 * 4 + 1 * 32) / 3)
    assert read_returns(lists, [*"abcd"]).errors == pytest.approx({"a": pooled, "b": 2 / np.sqrt(3), "c": 4})
    table.write_text("name,return,return_std,rollouts\na,1,0,1\nb,2,,1\n")
    assert read_returns(table, ["a", "b"]).errors == {"a": 0}  # nothing tells


def test_standard_deviations_need_the_number_of_rollouts(tmp_path):
    pandas = pytest.importorskip("pandas")
    path = tmp_path / "r.csv"
    path.write_text("name,return,return_std,rollouts\na,1,2,\nb,3,,\nc,4,2,4\n")
    for source, where in ((path, str(path)), (pandas.read_csv(path), "the DataFrame")):
        with pytest.warns(UserWarning, match=rf"^{re.escape(where)}: return_std is ignored .* policies a; add"):
            assert read_returns(source, ["a", "b", "c"]).errors == {"c": 1.0}
    path.write_text("name,return,return_std,return_se\na,1,2,\nb,3,,0.5\n")
    with pytest.raises(ValueError, match=r"r\.csv, line 3: 'b' has a standard error but no standard deviation"):
        read_returns(path, ["a", "b"], rollouts=4)
    path.write_text("name,return,return_std,return_se\na,1,2,0.5\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_returns(path, ["a"]).errors == {"a": 0.5}


def test_columns_of_one_meaning_are_refused(tmp_path):
    pandas = pytest.importorskip("pandas")
    path = tmp_path / "r.csv"
    for header, columns in [
        ("policy,name,return", "policy and name"),  # "policy" may be the class of a network
        ("name,return,Return", "return and Return"),
        ("name,return,return_std,rollouts,episodes", "rollouts and episodes"),
    ]:
        path.write_text(f"{header}\na,b,{'1,' * header.count(',')}".rstrip(",") + "\n")
        for source in (path, pandas.DataFrame(columns=header.split(","))):
            with pytest.raises(ValueError, match=rf"columns {columns} mean the same; leave only one of them"):
                read_returns(source, ["a"])


@pytest.mark.parametrize(("value", "shown"), [("1,234", "'1,234'"), (None, "None")])
def test_frames_of_text_name_the_policy(value, shown):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"name": ["a", "b"], "return": [1.0, value]}, dtype=object)
    with pytest.raises(ValueError, match=f"the DataFrame of returns holds {shown} for policy 'b', expected a number"):
        read_returns(frame, ["a", "b"])


def test_frames_without_names_or_returns_are_refused():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(
        TypeError, match="returns are a DataFrame of a, b; pass one of its columns, or name one 'return'"
    ):
        check_returns(pandas.DataFrame({"a": [1.0], "b": [2.0]}), ["x"])
    frame = pandas.DataFrame({"name": ["x", "x"], "return": [1.0, 2.0]})
    with pytest.raises(ValueError, match="returns hold several values for policy 'x'"):
        check_returns(frame, ["x"])
    with pytest.raises(ValueError, match=re.escape("returns hold nothing for policy 'y' (nearest names: 'yy')")):
        check_returns(pandas.DataFrame({"policy": ["x", "yy"], "return": [1.0, 2.0]}), ["x", "y"])


def test_fit_and_metrics_take_frames_and_folders(tmp_path):
    pandas = pytest.importorskip("pandas")
    gains = training_gains()
    policies = {f"run_{i}/best_model": policy for i, policy in enumerate(ladder(gains).values())}
    frame = pandas.DataFrame({"name": [*policies], "return": gains, "return_se": 0.1})
    for i, gain in enumerate(gains):
        save_evaluations(tmp_path / f"run_{i}", np.array([[gain, gain], [gain - 1, gain - 1]]))
    rankers = [sopr_fast.fit(policies, source, log(), config=TINY) for source in (frame, tmp_path)]
    states = [ranker.model.state_dict() for ranker in rankers]
    assert all(np.array_equal(states[0][key], states[1][key]) for key in states[0])
    ranking = rankers[0].rank(policies, subsets=2)
    assert ranking.spearman(frame) == ranking.spearman(tmp_path) == ranking.spearman(gains)


def test_evaluate_select_and_update_take_frames(tmp_path):
    pandas = pytest.importorskip("pandas")
    from sopr_fast.estimators import NearestPolicy

    known = ladder(np.linspace(0.1, 1.2, 8))
    frame = pandas.DataFrame({"name": [*known], "return": np.linspace(0.1, 1.2, 8), "return_se": 0.02})
    evaluation = sopr_fast.evaluate(log(), known, frame[1:], methods={"nearest": NearestPolicy()}, cv=2)
    assert evaluation.names == [*known][1:]
    np.testing.assert_array_equal(evaluation.return_errors, np.full(7, 0.02))
    path = tmp_path / "returns.csv"
    frame.to_csv(path, index=False)
    candidates = {f"new-{name}": policy for name, policy in ladder([0.33, 0.77]).items()}
    selection = sopr_fast.select(candidates, log(), known, path)
    measured = pandas.DataFrame({"name": ["other", *candidates][:2], "return": [1.0, 0.4], "return_se": 0.01})
    updated = selection.update(measured)
    place = updated.names.index(next(iter(candidates)))
    assert updated.returns[place] == 0.4 and updated.return_errors[place] == 0.01
    with pytest.raises(ValueError, match="no policy has a return: returns are given of other"):
        selection.update(measured[:1])


def test_errors_stay_with_returns():
    returns = Returns({"a": 1.0}, {"a": 0.5})
    assert returns == {"a": 1.0} and returns.errors == {"a": 0.5} and Returns().errors == {}
