"""The order of an epoch and the windows of `transform="train"`: pure arithmetic."""

import numpy as np
import pytest

pytest.importorskip("hypothesis")
from hypothesis import given
from hypothesis import strategies as st

from ingest.load import augment, epoch


def batches(num_samples, batch_size, world_size, *, drop_last, seed=0, number=0):
    """Return the batches of each rank: [rank][step] -> sample numbers."""
    order = epoch.permutation(num_samples, seed=seed, epoch=number)
    ranks = [
        epoch.Schedule(
            num_samples=num_samples,
            batch_size=batch_size,
            rank=rank,
            world_size=world_size,
            drop_last=drop_last,
        )
        for rank in range(world_size)
    ]
    return [
        [order[slice(*schedule.span(step))] for step in range(schedule.num_batches)] for schedule in ranks
    ]


sizes = {
    "num_samples": st.integers(0, 300),
    "batch_size": st.integers(1, 40),
    "world_size": st.integers(1, 9),
}


@given(num_samples=st.integers(0, 500), seed=st.integers(0, 2**64 - 1), number=st.integers(0, 2**40))
def test_permutation(num_samples, seed, number):
    """An order holds each sample once, and the same arguments give it again."""
    order = epoch.permutation(num_samples, seed=seed, epoch=number)

    assert sorted(order.tolist()) == list(range(num_samples))
    assert (order == epoch.permutation(num_samples, seed=seed, epoch=number)).all()


@given(**sizes, drop_last=st.booleans())
def test_ranks_share_without_overlap(num_samples, batch_size, world_size, drop_last):
    """No sample comes twice, and what is left out is less than a step, or than a sample a rank."""
    ranks = batches(num_samples, batch_size, world_size, drop_last=drop_last)

    seen = [sample for rank in ranks for batch in rank for sample in batch.tolist()]
    left_out = num_samples - len(seen)
    assert len(set(seen)) == len(seen)
    assert left_out < (world_size * batch_size if drop_last else world_size)


@given(**sizes, drop_last=st.booleans())
def test_ranks_are_balanced(num_samples, batch_size, world_size, drop_last):
    """All ranks have equally many batches; only the last is smaller, and differs by at most one sample."""
    ranks = batches(num_samples, batch_size, world_size, drop_last=drop_last)

    assert len({len(rank) for rank in ranks}) == 1
    assert all(len(batch) == batch_size for rank in ranks for batch in rank[:-1])
    for step in zip(*ranks, strict=True):
        lengths = [len(batch) for batch in step]
        assert 1 <= min(lengths) <= max(lengths) <= min(batch_size, min(lengths) + 1)
        assert not drop_last or min(lengths) == batch_size


@given(num_samples=st.integers(0, 300), batch_size=st.integers(1, 40))
def test_single_rank_sees_everything(num_samples, batch_size):
    """One rank that keeps the last batch gets each sample exactly once."""
    (rank,) = batches(num_samples, batch_size, 1, drop_last=False)

    assert sorted(np.concatenate([np.empty(0, int), *rank]).tolist()) == list(range(num_samples))


def test_world_size_keeps_the_steps():
    """Each step holds the same samples for 1 rank of 24, 2 of 12 and 6 of 4."""
    runs = [batches(100, 24 // n, n, drop_last=True) for n in (1, 2, 6)]

    steps = [[sorted(np.concatenate(step).tolist()) for step in zip(*ranks, strict=True)] for ranks in runs]
    assert steps[0] == steps[1] == steps[2]


def test_epochs_and_seeds_differ():
    """Another epoch or another seed is another order."""
    orders = {
        tuple(epoch.permutation(50, seed=seed, epoch=number)) for seed in range(4) for number in range(4)
    }

    assert len(orders) == 16


def test_order_is_fixed_for_all_time():
    """This very order: a change would break the resuming of every run there is."""
    order = epoch.permutation(12, seed=7, epoch=3).tolist()

    assert order == [9, 2, 4, 10, 7, 0, 8, 5, 3, 1, 11, 6]


def test_order_is_uniform():
    """Over many epochs each sample is equally often first (chi-squared, 9 degrees: 27.9 has p = 0.001)."""
    first = [epoch.permutation(10, seed=0, epoch=number)[0] for number in range(5000)]

    counts = np.bincount(first, minlength=10)
    assert ((counts - 500) ** 2 / 500).sum() < 27.9


@given(width=st.integers(1, 5000), height=st.integers(1, 5000), number=st.integers(0, 1000))
def test_windows_lie_inside(width, height, number):
    """A window lies in its picture and is not empty."""
    drawn = augment.uniforms(np.arange(32), seed=1, epoch=number)
    begin, end = augment.windows(drawn, np.full(32, width), np.full(32, height))

    assert (begin >= 0).all()
    assert (end <= np.array([height, width], np.float32) * (1 + 1e-6)).all()
    assert (begin < end).all()


def test_windows_have_the_areas_of_random_resized_crop():
    """Areas of square pictures spread from 8 to 100 %, aspect ratios over 3/4 to 4/3, half are flipped."""
    drawn = augment.uniforms(np.arange(20_000), seed=1, epoch=0)
    begin, end = augment.windows(drawn, np.full(20_000, 224), np.full(20_000, 224))

    height, width = (end - begin).T
    area = height * width / 224**2
    assert area.min() == pytest.approx(0.08, abs=0.01)
    assert area.max() == pytest.approx(1, abs=0.01)
    assert area.mean() == pytest.approx(0.478, abs=0.01)  # not 0.54: large ones fit less often
    assert (width / height).min() == pytest.approx(3 / 4, abs=0.01)
    assert (width / height).max() == pytest.approx(4 / 3, abs=0.01)
    assert augment.flips(drawn).mean() == pytest.approx(0.5, abs=0.02)


def test_windows_belong_to_the_sample():
    """A sample's window does not depend on the others of its batch, but on seed and epoch."""
    alone = augment.uniforms(np.array([7]), seed=1, epoch=2)
    among = augment.uniforms(np.array([3, 7, 9]), seed=1, epoch=2)
    later = augment.uniforms(np.array([7]), seed=1, epoch=3)

    assert (alone[0] == among[1]).all()
    assert (alone != later).all()
