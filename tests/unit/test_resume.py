"""resume: a run that was cut off goes on at the exact next sample, whatever the topology."""

import json
import shutil
import signal
import subprocess
import sys

import pytest

import ingest
from ingest.load import epoch
from ingest.load.state import State

pytest.importorskip("hypothesis")
pytest.importorskip("nvidia.dali")
from hypothesis import given
from hypothesis import strategies as st

_RUN = """
import json, sys
import ingest

dataset, state, batch_size = sys.argv[1], sys.argv[2], int(sys.argv[3])
loader = ingest.loader(dataset, batch_size=batch_size, drop_last=False, device="cpu", seed=5)
if state != "none":
    loader.load_state_dict(json.loads(state))
while True:
    for keys, _ in zip(loader.batch_keys(loader.state_dict()["epoch"]), loader):
        print(json.dumps([keys, loader.state_dict()]), flush=True)
"""


def _open(dataset, **settings):
    return ingest.loader(
        dataset, **({"batch_size": 4, "device": "cpu", "drop_last": False, "seed": 3} | settings)
    )


def _order(loader, number):
    return [key for keys in loader.batch_keys(number) for key in keys]


@given(
    num_samples=st.integers(1, 200),
    topologies=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 20)), min_size=2, max_size=4),
    steps=st.integers(1, 5),
)
def test_rest_of_an_epoch_is_seen_once_by_any_topology(num_samples, topologies, steps):
    """World size and batch size change every few steps: each sample is seen once, in its order."""
    seen, taken = 0, []
    for number, (world_size, batch_size) in enumerate(topologies):
        ranks = [
            epoch.Schedule(
                num_samples=num_samples, batch_size=batch_size, rank=rank, world_size=world_size,
                drop_last=False, seen=seen,
            )
            for rank in range(world_size)
        ]  # fmt: skip
        last = number == len(topologies) - 1
        for step in range(ranks[0].num_batches if last else min(steps, ranks[0].num_batches)):
            taken += [place for rank in ranks for place in range(*rank.span(step))]
            seen = ranks[0].seen_after(step)

    left_out = num_samples - len(taken)
    assert taken == list(range(num_samples - left_out))
    assert left_out < max(world for world, _ in topologies)


@pytest.mark.parametrize("stop", range(6))
def test_loader_goes_on_at_the_next_sample(sealed, stop, device):
    """After any batch, on two ranks with other batches: the rest of the epoch, or the next one."""
    first = _open(sealed, device=device)
    wanted, following = _order(first, 0), _order(first, 1)
    batches = iter(first)
    for _ in range(stop):
        next(batches)
    state = json.loads(json.dumps(first.state_dict()))

    ranks = [_open(sealed, batch_size=3, rank=rank, world_size=2, seed=9, device=device) for rank in (0, 1)]
    for loader in ranks:
        loader.load_state_dict(state)

    number = ranks[0].state_dict()["epoch"]
    steps = zip(*(loader.batch_keys(number) for loader in ranks), strict=True)
    rest = [key for step in steps for keys in step for key in keys]
    assert number == int(stop == 5)
    assert rest == (following if stop == 5 else wanted[4 * stop :])
    assert [len(labels) for _, labels in ranks[0]] == [
        len(keys) for keys in _with_state(sealed, state, rank=0)
    ]
    assert ranks[0].state_dict() == {**state, "epoch": number + 1, "seen": 0}


def _with_state(dataset, state, rank):
    loader = _open(dataset, batch_size=3, rank=rank, world_size=2)
    loader.load_state_dict(state)
    return list(loader.batch_keys(state["epoch"] if state["seen"] < 20 else state["epoch"] + 1))


def test_set_epoch_of_the_loaded_epoch_changes_nothing(sealed):
    """A loop that sets the epoch before each goes on in the middle; another number begins at its begin."""
    loader = _open(sealed)
    next(iter(loader))
    state = loader.state_dict()

    for number, batches in ((0, 4), (1, 5)):
        again = _open(sealed)
        again.load_state_dict(state)
        again.set_epoch(number)
        assert again.state_dict() == {**state, "epoch": number, "seen": state["seen"] * (number == 0)}
        assert sum(1 for _ in again) == batches


@pytest.mark.parametrize("stops", [(1, 2, 7), (6, 6)])
def test_killed_run_goes_on(sealed, stops):
    """A run is killed time and again, and goes on with other batches: no key is lost or doubled."""
    loader = _open(sealed, seed=5)
    wanted = [key for number in range(6) for key in _order(loader, number)]
    state, taken = "none", []
    for size, stop in enumerate(stops, 3):
        command = [sys.executable, "-c", _RUN, str(sealed), state, str(size)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
            for _ in range(stop):
                keys, stand = json.loads(run.stdout.readline())
                taken += keys
                state = json.dumps(stand)
            run.send_signal(signal.SIGKILL)

    assert taken
    assert taken == wanted[: len(taken)]


def test_dataset_that_grew_goes_on_by_its_old_index(tmp_path):
    """The samples of the state's index are seen, those that were added are not; a new loader has them."""
    builds = pytest.importorskip("tests.builds", exc_type=ImportError)
    builds.add_photos(tmp_path / "raw", 8)
    builds.build(tmp_path)
    dataset = str(tmp_path / "out")
    loader = _open(dataset, batch_size=2)
    wanted = _order(loader, 0)
    next(iter(loader))
    state = loader.state_dict()
    builds.add_photos(tmp_path / "raw", 12)
    builds.build(tmp_path)

    grown = _open(dataset, batch_size=2)
    assert grown.num_samples == 12
    grown.load_state_dict(state)

    newest = _open(dataset, batch_size=2)
    with pytest.raises(ingest.ConfigError, match="11 samples seen, of 8"):
        newest.load_state_dict({**state, "seen": 11})
    assert (newest.num_samples, sum(1 for _ in newest)) == (12, 6)  # as before the refusal
    assert _order(grown, 0) == wanted[2:]
    assert grown.num_samples == 8
    assert sum(1 for _ in grown) == 3
    shutil.rmtree(tmp_path / "out/history")
    with pytest.raises(ingest.ConfigError, match="another dataset, or `ingest gc` has cleared that index"):
        _open(dataset).load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"split": "val"}, "the state is of split 'val'"),
        ({"index": "00000000"}, "the state is of a dataset with index 00000000"),
        ({"seen": 21}, "21 samples seen, of 20"),
        ({"seen": -1}, "the state has seen -1, expected a whole number"),
        ({"seed": 2**64}, "the state has seed 18446744073709551616, expected a whole number"),
        ({"shuffle": 1}, "the state has shuffle 1, expected true or false"),
        ({"epoch": None}, "the state has epoch None"),
        ({"format_version": 9}, "format version 9, expected 1"),
    ],
)
def test_state_that_does_not_fit_is_refused(sealed, change, said):
    """Another dataset or split, or a damaged state, is a sentence; the loader stays as it was."""
    loader = _open(sealed)
    before = loader.state_dict()

    with pytest.raises(ingest.ConfigError, match=said):
        loader.load_state_dict({**before, **change})
    assert loader.state_dict() == before


def test_what_is_no_state_is_refused():
    """The state of something else is no state of a loader."""
    with pytest.raises(ingest.ConfigError, match="a list is no state"):
        State.from_dict([1])
    with pytest.raises(ingest.ConfigError, match="a dict is no state"):
        State.from_dict({"model": 1})


def test_train_windows_are_those_of_an_uninterrupted_run(sealed, device):
    """Random crops and flips follow the sample and the epoch, so a resumed run has the same pixels."""
    loader = _open(sealed, transform="train", device=device)
    batches = [images for images, _ in loader]
    again = _open(sealed, transform="train", device=device)
    for _ in zip(range(2), again, strict=False):
        state = again.state_dict()
    resumed = _open(sealed, transform="train", device=device)
    resumed.load_state_dict(state)

    pairs = zip(resumed, batches[2:], strict=True)
    assert [images.equal(wanted) for (images, _), wanted in pairs] == [True] * 3
