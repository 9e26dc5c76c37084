"""`ingest.loader()` on every device that is there: order, pixels, labels, life cycle, errors."""

import contextlib
import dataclasses
import gc
import itertools
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest import index, shard
from ingest.load import augment, options
from tests.datasets import BLUE_STEP, decode, key_of, make_dataset, picture_HWC

torch = pytest.importorskip("torch")
pytest.importorskip("nvidia.dali")

MEAN = torch.tensor(options.IMAGENET_MEAN).reshape(1, 3, 1, 1)
STD = torch.tensor(options.IMAGENET_STD).reshape(1, 3, 1, 1)
THREADS = Path("/proc/self/task")
TOLERANCE = {"cpu": 1, "cuda": 6}
"""Levels of 255 between two decoders. The CPU ones are both libjpeg-turbo; nvJPEG rounds otherwise."""


def raw(dataset, **settings):
    """Open `dataset` for pixels of 0 to 255 in a fixed order unless `settings` say otherwise."""
    plain = {"dtype": "uint8", "normalise": None, "drop_last": False, "shuffle": False, "batch_size": 8}
    return ingest.loader(dataset, **(plain | settings))


def numbers_of(images):
    """Return which samples the pictures of a uint8 batch are."""
    blue = images[:, 2].float().mean((1, 2)).cpu().numpy()
    return np.rint(blue / BLUE_STEP).astype(int).tolist()


def epoch_of(loader):
    """Run one epoch; return the numbers of the samples of each batch."""
    return [numbers_of(images) for images, _ in loader]


def corrupt(dataset, number, damage):
    """Change the bytes of sample `number` in place, so that no size changes, and return its shard's name."""
    for entry in index.read_index(str(dataset)).splits["train"]:
        _, receipt = shard.read_receipt(str(dataset), entry.name)
        rows = {row["key"]: row for row in receipt.to_pylist()}
        if row := rows.get(key_of(number)):
            path = dataset / f"{entry.name}.tar"
            data = bytearray(path.read_bytes())
            begin, end = row["image_offset"], row["image_offset"] + row["image_bytes"]
            data[begin:end] = damage(bytes(data[begin:end]))
            path.write_bytes(data)
            return entry.name
    raise AssertionError(number)


@pytest.fixture
def changeable(sealed, tmp_path):
    """Return a copy of the sealed dataset that a test may damage."""
    return shutil.copytree(sealed, tmp_path / "dataset")


def test_batches(sealed, device):
    """A batch is float32 (B, 3, S, S) and int64 (B,), both on the device, by default."""
    with ingest.loader(sealed, batch_size=8, device=device) as loader:
        batches = list(loader)

    assert len(batches) == len(loader) == 2
    for images, labels in batches:
        assert images.shape == (8, 3, 224, 224)
        assert images.dtype == torch.float32
        assert images.is_contiguous()
        assert (labels.shape, labels.dtype) == ((8,), torch.int64)
        assert images.device.type == labels.device.type == device == loader.device.type


def test_pixels(sealed, device):
    """Pixels are those of a plain decoder of the same bytes, and near those that were encoded."""
    entry = index.read_index(str(sealed)).splits["train"][0]
    rows = shard.samples_of(shard.read_receipt(str(sealed), entry.name)[1]).to_pylist()
    data = (sealed / f"{entry.name}.tar").read_bytes()
    plain = [decode(data[row["image_offset"] :][: row["image_bytes"]]) for row in rows]

    with raw(sealed, device=device) as loader:
        images = next(iter(loader))[0].permute(0, 2, 3, 1).cpu().numpy().astype(int)

    assert np.abs(images - np.stack(plain)).max() <= TOLERANCE[device]
    assert np.abs(images - np.stack([picture_HWC(number) for number in range(8)])).mean() < 2


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-5), ("float16", 2e-3)])
def test_normalised(sealed, device, dtype, error, layout):
    """By default a pixel p becomes (p / 255 - mean) / std of ImageNet, in either dtype and layout."""
    with raw(sealed, device=device) as loader:
        pixels = next(iter(loader))[0].cpu()
    with raw(sealed, device=device, dtype=dtype, normalise="imagenet", layout=layout) as loader:
        images = next(iter(loader))[0]

    memory = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    assert images.dtype == getattr(torch, dtype)
    assert images.is_contiguous(memory_format=memory)
    torch.testing.assert_close(images.cpu().float(), (pixels / 255 - MEAN) / STD, atol=error, rtol=error)


@pytest.mark.parametrize(
    ("normalise", "mean", "std"),
    [
        (None, (0, 0, 0), (1, 1, 1)),
        ("dataset", (0.5, 0.5, 0.25), (0.25, 0.25, 0.125)),
        (((0.1, 0.2, 0.3), (0.4, 0.5, 0.6)), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)),
    ],
    ids=["none", "dataset", "given"],
)
def test_normalise(sealed, device, normalise, mean, std):
    """`normalise` takes None (0 to 1), the dataset's own values, or any others."""
    with raw(sealed, device=device) as loader:
        pixels = next(iter(loader))[0].cpu()
    with raw(sealed, device=device, dtype="float32", normalise=normalise) as loader:
        images = next(iter(loader))[0].cpu()

    mean, std = (torch.tensor(values).reshape(1, 3, 1, 1) for values in (mean, std))
    torch.testing.assert_close(images, (pixels / 255 - mean) / std, atol=1e-5, rtol=1e-5)


def test_labels_and_keys_belong_to_the_pictures(sealed, device):
    """In a shuffled epoch each picture comes with its own label, and `batch_keys` names it."""
    with raw(sealed, device=device, shuffle=True) as loader:
        for (images, labels), keys in zip(loader, loader.batch_keys(0), strict=True):
            numbers = numbers_of(images)
            assert labels.tolist() == [number % 4 for number in numbers]
            assert keys == [key_of(number) for number in numbers]


def test_order_without_shuffle(sealed, device):
    """With shuffle=False samples come in the order of the dataset, over the borders of shards."""
    with raw(sealed, device=device, batch_size=6) as loader:
        assert epoch_of(loader) == [[*range(6)], [*range(6, 12)], [*range(12, 18)], [18, 19]]


def test_epochs(sealed, device):
    """Each epoch holds every sample once, in an order of its own that its number brings back."""
    with raw(sealed, device=device, shuffle=True, seed=5) as loader:
        first, second = epoch_of(loader), epoch_of(loader)
        loader.set_epoch(0)
        again, third = epoch_of(loader), None
    with raw(sealed, device=device, shuffle=True, seed=5) as loader:
        other_loader = epoch_of(loader)
    with raw(sealed, device=device, shuffle=True, seed=6) as loader:
        third = epoch_of(loader)

    assert first == again == other_loader
    assert len({str(order) for order in (first, second, third)}) == 3
    for order in (first, second, third):
        assert sorted(itertools.chain(*order)) == list(range(20))


@pytest.mark.parametrize(("drop_last", "lengths"), [(True, [3, 3, 3]), (False, [3, 3, 3, 1])])
def test_ranks(sealed, device, drop_last, lengths):
    """Ranks get equally many batches and share no sample; a last partial batch comes only if wanted."""
    seen = []
    for rank in range(2):
        settings = {"rank": rank, "world_size": 2, "batch_size": 3, "shuffle": True}
        with raw(sealed, device=device, drop_last=drop_last, **settings) as loader:
            order = epoch_of(loader)
        assert [len(batch) for batch in order] == lengths
        assert len(loader) == len(lengths)
        seen += itertools.chain(*order)

    assert len(seen) == len(set(seen)) == 2 * sum(lengths)


def test_rank_from_the_environment(sealed, monkeypatch):
    """Without torch.distributed, rank and world size are those that torchrun sets."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with raw(sealed, device="cpu", batch_size=5) as loader:
        assert epoch_of(loader) == [[5, 6, 7, 8, 9], [15, 16, 17, 18, 19]]


def test_split_without_labels(tmp_path, device):
    """A dataset without labels gives None in their place."""
    with raw(make_dataset(tmp_path / "dataset", labels=False), device=device) as loader:
        assert [labels for _, labels in loader] == [None] * 3
        assert loader.classes == ()


def test_eval_crops_the_centre(tmp_path, device):
    """Pictures that are not square lose both ends of their longer side."""
    dataset = make_dataset(tmp_path / "dataset", samples=4, size=64, width=96)
    with raw(dataset, device=device, batch_size=4) as loader:
        images = next(iter(loader))[0].cpu().numpy().transpose(0, 2, 3, 1).astype(int)

    expected = np.stack([picture_HWC(number, 96, 64)[:, 16:80] for number in range(4)])
    assert np.abs(images - expected).mean() < 2


@pytest.mark.parametrize("width", [None, 320])
def test_train_takes_the_window_it_was_told(tmp_path, device, width):
    """`transform="train"` shows the window and flip of `augment` for this sample and epoch, scaled up."""
    dataset = make_dataset(tmp_path / "dataset", samples=16, width=width)
    with raw(dataset, device=device, batch_size=16, transform="train", seed=3) as loader:
        images = next(iter(loader))[0].cpu().float()
        assert images.shape == (16, 3, 224, 224)

    wide = width or 224
    drawn = augment.uniforms(np.arange(16), seed=3, epoch=0)
    begin, end = augment.windows(drawn, np.full(16, wide), np.full(16, 224))
    for number, flip in enumerate(augment.flips(drawn)):
        row, column = images[number, 1].mean(1), images[number, 0].mean(0)
        found = torch.stack([row[[0, -1]] / 255 * 224, column[[-1, 0] if flip else [0, -1]] / 255 * wide])
        wanted = torch.tensor(np.stack([begin[number], end[number]], axis=1))
        assert (found - wanted).abs().max() < 4  # pixels of the source


def test_train_differs_by_epoch_only(sealed, device):
    """The same epoch gives the same crops again, the next one others."""
    with raw(sealed, device=device, transform="train") as loader:
        first, second = (torch.cat([images for images, _ in loader]) for _ in range(2))
        loader.set_epoch(0)
        again = torch.cat([images for images, _ in loader])

    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_two_loaders_at_once(sealed, device):
    """Two loaders of one dataset, taken in turn, do not disturb each other."""
    with raw(sealed, device=device, batch_size=4) as one, raw(sealed, device=device, batch_size=4) as two:
        pairs = [(numbers_of(a), numbers_of(b)) for (a, _), (b, _) in zip(one, two, strict=True)]

    assert pairs == [([*range(n, n + 4)],) * 2 for n in range(0, 20, 4)]


def test_batches_stay_as_they_are(sealed, device):
    """A batch that is kept is not overwritten by those that follow, nor by close."""
    with raw(sealed, device=device, batch_size=4, prefetch=1) as loader:
        batches = [images for images, _ in loader]
        epoch_of(loader)
    gc.collect()

    assert [numbers_of(images) for images in batches] == [[*range(n, n + 4)] for n in range(0, 20, 4)]


@pytest.mark.parametrize("taken", [0, 1, 2, 4])
@pytest.mark.parametrize("prefetch", [1, 3])
def test_restart_after_break(sealed, device, taken, prefetch):
    """After leaving an epoch early, the next is whole and starts at its beginning."""
    with raw(sealed, device=device, batch_size=4, prefetch=prefetch) as loader:
        for _ in itertools.islice(loader, taken):
            pass
        assert epoch_of(loader) == [[*range(n, n + 4)] for n in range(0, 20, 4)]


def test_exception_in_the_loop(sealed, device):
    """An exception in the middle passes through, and the loader goes on with a whole epoch."""
    with raw(sealed, device=device) as loader:
        with contextlib.suppress(ZeroDivisionError):
            for _ in loader:
                raise ZeroDivisionError
        assert len(epoch_of(loader)) == len(loader)


def test_newer_iteration_ends_the_older(sealed, device):
    """An iterator says so when a newer one of the same loader took over."""
    with raw(sealed, device=device, batch_size=4) as loader:
        older = iter(loader)
        next(older)
        assert epoch_of(loader)[0] == [0, 1, 2, 3]
        with pytest.raises(ingest.IngestError, match="newer iteration"):
            next(older)


def test_close_frees_threads(sealed, device):
    """Opening, using and closing again and again leaves no thread behind, with or without a whole epoch."""
    with raw(sealed, device=device) as loader:
        next(iter(loader))
    before = len(list(THREADS.iterdir())), threading.active_count()
    for _ in range(5):
        with raw(sealed, device=device) as loader:
            next(iter(loader))

    assert (len(list(THREADS.iterdir())), threading.active_count()) == before


def test_closed(sealed, device):
    """A closed loader may be closed again, and refuses to be used in one sentence."""
    loader = raw(sealed, device=device)
    loader.close()
    loader.close()

    with pytest.raises(ingest.ConfigError, match="is closed"):
        iter(loader)


@pytest.mark.parametrize(
    "damage",
    [lambda data: b"\0" * len(data), lambda data: data[:700] + b"\0" * (len(data) - 700)],
    ids=["no jpeg", "cut off"],
)
def test_undecodable_sample(changeable, device, damage, request):
    """A picture that cannot be decoded is named with shard, key and raw file; others still load."""
    if device == "cuda" and request.node.callspec.id.endswith("cut off"):
        pytest.skip("nvJPEG fills in what is missing and says nothing; `ingest verify` finds it")
    name = corrupt(changeable, 13, damage)
    with raw(changeable, device=device) as loader:
        with pytest.raises(ingest.CorruptShardError) as caught:
            epoch_of(loader)
        assert numbers_of(next(iter(loader))[0]) == [*range(8)]

    for part in (f"{name}.tar", key_of(13), "/photos/photo 13.jpg"):
        assert part in str(caught.value)


def test_not_sealed(tmp_path):
    """A folder without an index is not a dataset."""
    with pytest.raises(ingest.NotSealedError, match=r"dataset\.json"):
        ingest.loader(tmp_path, device="cpu")


def test_other_encoding_is_refused(tmp_path):
    """A dataset of raw pixels is refused in a sentence before anything is read."""
    folder = str(make_dataset(tmp_path / "raw"))
    sealed = index.read_index(folder)
    recipe = dataclasses.replace(sealed.recipe, encoding="npy")
    index.write_index(folder, dataclasses.replace(sealed, recipe=recipe))

    with pytest.raises(ingest.ConfigError, match="holds npy samples, expected jpeg"):
        ingest.loader(folder, batch_size=2, device="cpu")


def test_unknown_split(sealed):
    """The error for a split that is not there names those that are."""
    with pytest.raises(ingest.ConfigError, match=r"split='test'.*'train'"):
        ingest.loader(sealed, split="test", device="cpu")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": True}, "batch_size=True"),
        ({"batch_size": 21}, "20 samples, too few for a batch of 21.*lower batch_size or pass drop_last"),
        ({"rank": 2, "world_size": 2}, "rank=2"),
        ({"rank": 0}, "belong together"),
        ({"seed": -1}, "seed=-1"),
        ({"num_threads": 0}, "num_threads=0"),
        ({"prefetch": 0}, "prefetch=0"),
        ({"transform": "test"}, "transform='test'.*'eval', 'train'"),
        ({"layout": "NHWC"}, "layout='NHWC'"),
        ({"dtype": "float64"}, "dtype='float64'"),
        ({"dtype": "uint8"}, "normalise=None"),
        ({"normalise": "cifar"}, "normalise='cifar'"),
        ({"normalise": ((0, 0, 0), (1, 0, 1))}, "std"),
    ],
    ids=str,
)
def test_impossible_settings(sealed, settings, said):
    """A setting that cannot be is refused when the dataset is opened, with what is allowed."""
    with pytest.raises(ingest.ConfigError, match=said):
        ingest.loader(sealed, **({"batch_size": 8, "device": "cpu"} | settings))


@pytest.mark.parametrize("suffix", [".tar", ".parquet"])
def test_missing_file(changeable, suffix):
    """A shard or receipt that is gone is named when the dataset is opened, with the remedy."""
    path = next(changeable.glob(f"train/000001-*{suffix}"))
    path.unlink()

    with pytest.raises(ingest.CorruptShardError, match=f"{path.name}.*run the build again"):
        raw(changeable, device="cpu")


def test_shard_of_wrong_size(changeable):
    """A shard that was cut off is refused when the dataset is opened."""
    path = next(changeable.glob("train/000002-*.tar"))
    path.write_bytes(path.read_bytes()[:-512])

    with pytest.raises(ingest.CorruptShardError, match=rf"{path.name}: \d+ bytes found, \d+ expected"):
        raw(changeable, device="cpu")


def test_receipt_of_another_shard(changeable):
    """A receipt with another number of samples than the index says is refused."""
    first, last = (next(changeable.glob(f"train/00000{number}-*.parquet")) for number in (0, 2))
    shutil.copy(first, last)

    with pytest.raises(ingest.CorruptShardError, match="8 samples found, 4 expected"):
        raw(changeable, device="cpu")


_MAPPER = """
import pathlib, resource, sys
from ingest.load import gather
resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[2])))
maps = [gather.map_shards([pathlib.Path(sys.argv[1])] * 600) for _ in range(2)]
print(sum(len(part) for part in maps), maps[1][599][0])
"""


def test_more_shards_than_open_files(tmp_path):
    """Shards beyond the limit of open files are mapped, and count in each loader of a process."""
    (tmp_path / "shard").write_bytes(b"\7 and more")
    done = subprocess.run(
        [sys.executable, "-c", _MAPPER, tmp_path / "shard", "2000"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "1200 7\n"), done.stderr


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="maps need no open files there")
def test_too_many_shards_for_the_system(tmp_path):
    """Where the system does not let the limit be raised far enough, the sentence names limit and remedy."""
    (tmp_path / "shard").write_bytes(b"\7")
    done = subprocess.run(
        [sys.executable, "-c", _MAPPER, tmp_path / "shard", "80"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    *_, last = done.stderr.splitlines()
    assert last == (
        "ingest.errors.DeviceError: 600 shards need as many open files, the limit is 80 (at most 80): "
        "raise it with `ulimit -n 1112`"
    )


@pytest.fixture
def remote(sealed):
    """Return the URL of a copy of the sealed dataset in fsspec's memory file system, and that file system."""
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.put(str(sealed), "/remote", recursive=True)
    yield "memory://remote", memory
    memory.rm("/remote", recursive=True)


def test_remote_dataset(remote, tmp_path, device):
    """A dataset behind a URL gives the same samples; its shards are fetched once and then kept."""
    url, memory = remote
    with raw(url, device=device, cache_dir=tmp_path) as loader:
        assert sorted(itertools.chain(*epoch_of(loader))) == [*range(20)]
    for path in memory.glob("/remote/train/*.tar"):
        memory.rm(path)
    with raw(url, device=device, cache_dir=tmp_path) as loader:
        assert len(epoch_of(loader)) == 3


def test_remote_shard_with_wrong_bytes(remote, tmp_path):
    """A fetched shard whose checksum is not that of the index is refused, and not kept."""
    url, memory = remote
    path = memory.glob("/remote/train/000001-*.tar")[0]
    data = memory.cat_file(path)
    memory.pipe_file(path, data[:-1] + b"\1")

    with pytest.raises(ingest.CorruptShardError, match=r"000001-.*SHA-256"):
        raw(url, device="cpu", cache_dir=tmp_path)
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 2


@pytest.mark.parametrize(("module", "named"), [("torch", "torch"), ("nvidia.dali", "NVIDIA DALI")])
def test_engine_is_missing(sealed, monkeypatch, module, named):
    """Without torch or DALI the one sentence holds the command that installs it."""
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "ingest.load.dali", raising=False)
    monkeypatch.delattr("ingest.load.dali", raising=False)

    with pytest.raises(ingest.DeviceError, match=rf'needs {named}.*pip install "ingest\[load,cuda13\]"'):
        ingest.loader(sealed)


@pytest.mark.parametrize("wanted", ["cuda", "cuda:99", "mps", "toaster"])
def test_no_such_device(sealed, wanted):
    """A device that is not there is refused in one sentence that says what to pass or mend."""
    if wanted == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(ingest.DeviceError, match=f"device='{wanted}'"):
        ingest.loader(sealed, device=wanted)
