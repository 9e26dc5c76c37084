"""`ingest.loader()`, the face of the room: from a sealed dataset to batches of torch tensors."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ingest import index as index_format
from ingest import shard as shard_format
from ingest import store, units
from ingest.errors import ConfigError, CorruptShardError, DeviceError, NotSealedError
from ingest.load import augment, epoch, fetch, gather, options
from ingest.load.state import State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType, TracebackType

    import numpy.typing as npt
    import torch

    from ingest.index import Index
    from ingest.load import dali


def loader(
    dataset: str | Path,
    *,
    batch_size: int = 256,
    split: str = "train",
    device: str | torch.device | None = None,
    transform: options.Transform = "eval",
    normalise: options.Normalise = "imagenet",
    dtype: options.Dtype = "float32",
    layout: options.Layout = "channels_first",
    shuffle: bool = True,
    seed: int = 0,
    drop_last: bool = True,
    rank: int | None = None,
    world_size: int | None = None,
    num_threads: int | None = None,
    prefetch: int = 2,
    cache_dir: str | Path | None = None,
) -> Loader:
    """Open a sealed dataset for training.

    Each pass over the result is one epoch and yields ``(images, labels)``:

    - `images`: (B, 3, S, S), `dtype`, on `device`, with S the recipe's size (224 by default). R, G, B.
      Normalised, they are ``(pixel / 255 - mean) / std``; with ``normalise=None`` they are 0 to 1, and with
      ``dtype="uint8"`` 0 to 255.
    - `labels`: (B,), int64, class ids on `device`; None for a dataset without labels.

    Every sample comes at most once an epoch over all ranks, in an order that depends on `seed` and the
    epoch alone. All ranks get equally many batches: ``len(loader)``.

    Args:
        dataset: path or URL of the folder with ``dataset.json``. Local shards are read in place; those of a
            URL are copied to `cache_dir` before the first batch.
        batch_size: samples in a batch of this rank.
        split: which split of the dataset.
        device: ``"cuda"``, ``"cuda:1"`` or ``"cpu"``; decoding happens there. None takes the current CUDA
            device where torch sees one, else the CPU.
        transform: ``"eval"`` crops the centre, which changes nothing in a square picture. ``"train"`` takes
            a random part of each picture (8 to 100 % of its area) and flips half of them, anew each epoch.
        normalise: ``"imagenet"``, ``"dataset"`` (mean and deviation of this dataset, from its index),
            ``(mean, std)`` of R, G and B on a scale of 0 to 1, or None.
        dtype: ``float32`` suits any model as it is. ``float16`` halves the memory of a batch, for models
            in half precision or under autocast, but takes twice the time on the CPU. ``uint8`` needs
            ``normalise=None``.
        layout: how `images` lie in memory; the shape is the same. ``channels_last`` suits convolutions in
            half precision on tensor cores.
        shuffle: False keeps the order of the dataset.
        seed: 0 to 2^64 - 1; give all ranks the same.
        drop_last: whether samples that fill no whole batch on every rank are left out. If not, the last
            batch is smaller, and only as many samples are left out as do not give each rank one: fewer than
            `world_size`, so none on a single rank.
        rank: this process, 0 to `world_size` - 1. None asks torch.distributed, then the variables RANK and
            WORLD_SIZE that torchrun sets, and else is a single rank.
        world_size: number of ranks; pass it with `rank`.
        num_threads: CPU threads. None takes this rank's share of the cores, at most 8.
        prefetch: batches decoded ahead of use; each takes the memory of a batch.
        cache_dir: local folder for copies of remote shards. None is ``~/.cache/ingest``.

    Raises:
        ConfigError: a setting is impossible, or `split` is not in the dataset.
        NotSealedError: there is no ``dataset.json`` at `dataset`.
        CorruptShardError: a shard or a receipt is missing or does not agree with the index; during
            iteration: a sample cannot be decoded.
        DeviceError: torch, DALI or the device is missing or they do not fit.
        StoreError: the dataset cannot be read at the moment.
    """
    engine = _import_engine()
    chosen_device = engine.resolve_device(device)
    rank, world_size, num_local = options.resolve_rank(rank, world_size)
    url = store.normalise(str(dataset))
    index = index_format.read_index(url)
    options.check_encoding(index, url)
    options.check_choice("split", split, sorted(index.splits))
    schedule = epoch.Schedule(
        num_samples=index.num_samples(split),
        batch_size=options.check_number("batch_size", batch_size, 1),
        rank=rank,
        world_size=world_size,
        drop_last=drop_last,
    )
    options.check_not_empty(schedule, split)
    mean, std = options.scale(index, normalise, dtype)
    threads = options.default_threads(num_local) if num_threads is None else num_threads
    settings = engine.Settings(
        device=chosen_device,
        batch_size=batch_size,
        num_threads=options.check_number("num_threads", threads, 1),
        prefetch=options.check_number("prefetch", prefetch, 1),
        size=index.recipe.size,
        random_windows=options.check_choice("transform", transform, ["eval", "train"]) == "train",
        mean=mean,
        std=std,
        dtype=dtype,
        channels_last=options.check_choice("layout", layout, ["channels_first", "channels_last"])
        == "channels_last",
    )
    seed = options.check_number("seed", seed, 0, 2**64 - 1)
    cache = Path(cache_dir).expanduser() if cache_dir else fetch.default_cache_dir()
    source = _Source.open(url, index, split, cache)
    return Loader(source, schedule, engine.Decoder(settings), shuffle=shuffle, seed=seed)


def _import_engine() -> ModuleType:
    """Import torch and DALI, on first use: `import ingest` stays light, and a build machine has neither."""
    try:
        from ingest.load import dali  # noqa: PLC0415
    except ImportError as error:
        missing = "torch" if (error.name or "").startswith("torch") else "NVIDIA DALI"
        message = f'the loader needs {missing} ({error}): `pip install "ingest[load,cuda13]"`'
        raise DeviceError(f'{message}, or `"ingest[load,cuda12]"` for an older driver') from error
    return dali


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Source:
    """An opened split: where it is, what it holds, and its bytes."""

    url: str
    split: str
    index: Index
    cache_dir: Path
    samples: gather.Samples
    maps: list[npt.NDArray[np.uint8]]

    @classmethod
    def open(cls, url: str, index: Index, split: str, cache_dir: Path) -> Self:
        samples = gather.read_samples(url, index.splits[split], labelled=bool(index.classes))
        paths = fetch.local_shards(url, samples.shards, cache_dir)
        return cls(url, split, index, cache_dir, samples, gather.map_shards(paths))

    def at(self, version: str) -> Self:
        """Return this split as an index of another version has it, one that stood there before.

        Raises:
            ConfigError: none of that version is kept, or its samples are of another kind.
        """
        if version == self.index.version:
            return self
        try:
            before = index_format.read_index(self.url, version)
        except NotSealedError as error:
            message = f"the state is of a dataset with index {version}; {self.url} has {self.index.version}"
            raise ConfigError(f"{message}: another dataset, or `ingest gc` has cleared that index") from error
        if (before.recipe.size, self.split in before.splits) != (self.index.recipe.size, True):
            raise ConfigError(
                f"{self.url}: its index {version} has no split {self.split!r}, or samples of another size:"
                " start anew"
            )
        options.check_encoding(before, self.url)
        return type(self).open(self.url, before, self.split, self.cache_dir)

    def describe(self, position: int) -> str:
        """Return shard, key and raw file of a sample, for an error."""
        name, key = (
            self.samples.shards[self.samples.shard[position]].name,
            self.samples.keys[position].as_py(),
        )
        _, receipt = shard_format.read_receipt(self.url, name)
        sources = dict(zip(receipt["key"].to_pylist(), receipt["source"].to_pylist(), strict=True))
        return f"{self.url}/{name}.tar: sample {key} (made from {sources.get(key, 'an unknown file')})"


class Loader:
    """Batches of a dataset: iterate over it once an epoch. Made by `ingest.loader`, which describes them.

    One iteration at a time: a new one ends the one before. Leaving an iteration early, by ``break`` or by an
    exception, is fine. A context manager; `close` frees threads and memory at once. `state_dict` and
    `load_state_dict` are those of torchdata's StatefulDataLoader.

    Attributes:
        classes: label of each class id; empty for a dataset without labels.
        num_samples: samples of the split, over all ranks.
        batch_size: samples in a full batch of this rank.
        device: where the batches are.
    """

    def __init__(
        self,
        source: _Source,
        schedule: epoch.Schedule,
        decoder: dali.Decoder,
        *,
        shuffle: bool,
        seed: int,
    ) -> None:
        self.classes = source.index.classes
        self.num_samples = schedule.num_samples
        self.batch_size = schedule.batch_size
        self.device = decoder.settings.device
        self._source: _Source | None = source
        self._schedule = schedule
        self._decoder = decoder
        self._shuffle = shuffle
        self._seed = seed
        self._epoch = 0
        self._stand = (0, 0)  # the epoch that is under way, and how much of it was seen
        self._loaded: tuple[int, int] | None = None  # the same of a state, until an iteration takes it up

    def __len__(self) -> int:
        """Return the number of batches of an epoch: the same for every epoch and rank."""
        return self._schedule.num_batches

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor | Any]]:
        """Start the next epoch: number 0, then 1 and so on, whether or not the one before was finished."""
        # `| Any`, not `| None`: whoever opened a dataset knows whether it has labels, and need not ask again.
        source, current = self._opened(), self._epoch
        schedule = self._schedule_of(current)
        self._epoch, self._loaded = current + 1, None
        self._stand = (current, schedule.seen)
        return self._iterate(source, current, schedule)

    def set_epoch(self, number: int) -> None:
        """Make the next iteration epoch `number`; those after it count on from there.

        An epoch that was loaded in the middle goes on there: set its own number, and nothing changes.

        Raises:
            ConfigError: `number` is not from 0 to 2^64 - 1.
        """
        self._epoch = options.check_number("epoch", number, 0, 2**64 - 1)
        self._stand = (self._epoch, self._schedule_of(self._epoch).seen)

    def state_dict(self) -> dict[str, Any]:
        """Return where this run stands, to be asked between batches: what was handed out is seen.

        The same on every rank, of some hundred bytes, with values that JSON has.

        Raises:
            ConfigError: the loader is closed.
        """
        source, (number, seen) = self._opened(), self._stand
        state = State(
            index=source.index.version, split=source.split, shuffle=self._shuffle, seed=self._seed,
            epoch=number, seen=seen,
        )  # fmt: skip
        return state.to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a run stood: the next iteration begins with the first sample that it had not seen.

        Number of ranks, batch size, machine and path may be others. Order and seed become those of the state.
        Where the dataset has grown since, this loader stays with the index that the state is of; a new loader
        takes up what was added. What has come to its end goes on with the next epoch.

        Args:
            state: from `state_dict` of any rank.

        Raises:
            ConfigError: the state is damaged, or of another dataset or split.
        """
        read, source = State.from_dict(state), self._opened()
        if read.split != source.split:
            raise ConfigError(f"the state is of split {read.split!r}, and this loader has {source.split!r}")
        source = source.at(read.index)
        num_samples = source.index.num_samples(read.split)
        if read.seen > num_samples:
            raise ConfigError(f"the state has {read.seen} samples seen, of {num_samples}: it is damaged")
        self._source, self.classes, self.num_samples = source, source.index.classes, num_samples
        self._schedule = dataclasses.replace(self._schedule, num_samples=num_samples)
        self._shuffle, self._seed = read.shuffle, read.seed
        rest = dataclasses.replace(self._schedule, seen=read.seen)
        self._stand = (read.epoch, read.seen) if rest.num_batches else (read.epoch + 1, 0)
        self._epoch, self._loaded = self._stand[0], self._stand

    def batch_keys(self, number: int) -> Iterator[list[str]]:
        """Yield the keys of each batch of epoch `number` on this rank, without decoding anything.

        Raises:
            ConfigError: the loader is closed.
        """
        keys, schedule = self._opened().samples.keys, self._schedule_of(number)
        return (keys.take(positions).to_pylist() for positions in self._positions(number, schedule))

    def close(self) -> None:
        """Free threads, memory and files now; batches already handed out stay valid."""
        self._decoder.close()
        self._source = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        samples, batches = (
            units.count(self.num_samples, "sample"),
            f"{len(self)} of {self.batch_size} an epoch",
        )
        return f"<ingest.Loader: {samples}, {batches} on {self.device}>"

    def _opened(self) -> _Source:
        if self._source is None:
            raise ConfigError("this loader is closed: open the dataset again with ingest.loader()")
        return self._source

    def _schedule_of(self, number: int) -> epoch.Schedule:
        """Return how epoch `number` is cut: what was seen of the one that was loaded is left out."""
        loaded, seen = self._loaded or (None, 0)
        return dataclasses.replace(self._schedule, seen=seen if number == loaded else 0)

    def _iterate(
        self, source: _Source, number: int, schedule: epoch.Schedule
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor | Any]]:
        has_labels = source.samples.labels is not None
        engine = _import_engine()
        try:
            batches = self._decoder.decode(self._batches(source, number, schedule))
            for step, (images, labels) in enumerate(batches):
                is_last = step + 1 == schedule.num_batches
                self._stand = (number + 1, 0) if is_last else (number, schedule.seen_after(step))
                yield images, labels if has_labels else None
        except engine.DecodeError as error:
            if error.position is None:
                raise DeviceError(f"DALI stopped on {self.device}: {error.reason}") from error
            raise CorruptShardError(
                f"{source.describe(error.position)} cannot be decoded ({error.reason}): run `ingest verify`"
            ) from error

    def _positions(self, number: int, schedule: epoch.Schedule) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the numbers of the samples of each batch of this rank."""
        if self._shuffle:
            order = epoch.permutation(self.num_samples, seed=self._seed, epoch=number)
        else:
            order = np.arange(self.num_samples)
        for step in range(schedule.num_batches):
            begin, end = schedule.span(step)
            yield order[begin:end]

    def _batches(self, source: _Source, number: int, schedule: epoch.Schedule) -> Iterator[dali.Batch]:
        engine, samples = _import_engine(), source.samples
        for positions in self._positions(number, schedule):
            labels = (
                np.zeros(len(positions), np.int64) if samples.labels is None else samples.labels[positions]
            )
            encoded = gather.cut(samples, source.maps, positions)
            yield engine.Batch(positions, encoded, labels, self._windows(samples, positions, number))

    def _windows(
        self, samples: gather.Samples, positions: npt.NDArray[np.int64], number: int
    ) -> tuple[npt.NDArray[Any], ...]:
        if not self._decoder.settings.random_windows:
            return ()
        drawn = augment.uniforms(positions, seed=self._seed, epoch=number)
        begin, end = augment.windows(drawn, samples.width[positions], samples.height[positions])
        return begin, end, augment.flips(drawn)
