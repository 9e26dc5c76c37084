"""Encoded pictures in, torch tensors out: the one module that imports NVIDIA DALI.

Reads batches of views of the shards, leaves normalised pictures on the device. The order is the caller's:
DALI's own reader is not used, and its "shard" (the part of a rank) does not occur here.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from nvidia.dali import Pipeline, fn, types
from torch.utils.dlpack import from_dlpack

from ingest.errors import DeviceError, IngestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt

_DTYPES = {"float32": types.FLOAT, "float16": types.FLOAT16, "uint8": types.UINT8}

_HARDWARE_DECODER_LOAD = 0.65
# Share of a batch that goes to the JPEG engine of the card, the rest to its CUDA cores: the best of 0.4 to
# 0.85 for 224 px pictures on an H200 (42.6k images/s; 32.1k with 1.0). Cards without that engine ignore it.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one pipeline does.

    Attributes:
        device: where pictures are decoded and handed out.
        batch_size: pictures in the largest batch.
        num_threads: CPU threads of the pipeline.
        prefetch: batches decoded ahead of use.
        size: side of the square pictures handed out, in pixels.
        random_windows: whether batches bring windows and flips (else the centre is cropped).
        mean: subtracted from R, G and B, 0 to 255.
        std: divided by, 0 to 255.
        dtype: of the pictures: ``float32``, ``float16`` or ``uint8``.
        channels_last: whether the channels of a pixel lie side by side in memory.
    """

    device: torch.device
    batch_size: int
    num_threads: int
    prefetch: int
    size: int
    random_windows: bool
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    dtype: str
    channels_last: bool


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The B samples of one batch.

    Attributes:
        positions: int64 (B,), numbers of the samples.
        encoded: a view of the bytes of each picture.
        labels: int64 (B,).
        windows: nothing, or begin and end of the part to keep, float32 (B, 2) as (y, x) in pixels, and
            whether to flip it, int32 (B,).
    """

    positions: npt.NDArray[np.int64]
    encoded: list[npt.NDArray[np.uint8]]
    labels: npt.NDArray[np.int64]
    windows: tuple[npt.NDArray[Any], ...]

    def part(self, begin: int, end: int) -> Batch:
        """Return the samples `begin` to `end` (exclusive) of this batch."""
        windows = tuple(values[begin:end] for values in self.windows)
        return Batch(self.positions[begin:end], self.encoded[begin:end], self.labels[begin:end], windows)


class DecodeError(Exception):
    """A batch failed: `position` is the number of the sample that did it, None where none could be found."""

    def __init__(self, position: int | None, reason: str) -> None:
        super().__init__(position, reason)
        self.position = position
        self.reason = reason


def resolve_device(device: str | torch.device | None) -> torch.device:
    """Return the device asked for, a CUDA device with its number; None is cuda where there is one.

    Raises:
        DeviceError: there is no such device, or this torch cannot use it.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise DeviceError(f"device={device!r}: no such device: pass 'cuda', 'cuda:1' or 'cpu'") from error
    if wanted.type == "cpu":
        return torch.device("cpu")
    if wanted.type != "cuda":
        raise DeviceError(f"device={device!r}: DALI decodes on 'cuda' and 'cpu' only: pass one of these")
    _check_cuda(wanted)
    return torch.device("cuda", torch.cuda.current_device()) if str(wanted) == "cuda" else wanted


def _check_cuda(wanted: torch.device) -> None:
    if _cuda_of_torch() is None:
        raise DeviceError(
            f"device={str(wanted)!r}: torch {torch.__version__} is a build without CUDA: pass device='cpu',"
            ' or install a CUDA build of torch beside `pip install "ingest[load,cuda13]"`'
        )
    if not torch.cuda.is_available():
        raise DeviceError(
            f"device={str(wanted)!r}: no GPU that torch {torch.__version__} can use: pass device='cpu', or"
            f" update the NVIDIA driver to one for CUDA {_cuda_of_torch()} (see nvidia-smi)"
        )
    if (wanted.index or 0) >= torch.cuda.device_count():
        raise DeviceError(f"device={str(wanted)!r}: this machine has {torch.cuda.device_count()} GPUs")


def _cuda_of_torch() -> str | None:
    return torch.version.cuda


class _Feed:
    """Hands batches to the pipeline, which asks ahead of use, and keeps them until their pictures are out.

    DALI reads the views where they are; those of a batch in flight must not go away.
    """

    def __init__(self, batches: Iterator[Batch]) -> None:
        self.batches = batches
        self.in_flight: collections.deque[Batch] = collections.deque()

    def __call__(self) -> tuple[Any, ...]:
        batch = next(self.batches)  # its StopIteration tells DALI that the epoch ends
        self.in_flight.append(batch)
        return (batch.encoded, batch.labels, *batch.windows)


class Decoder:
    """One DALI pipeline: decodes the batches that it is given, in their order, some ahead of use."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._feed = _Feed(iter(()))
        self._pipeline: Any = None
        self._started = False
        self._run: object = None

    def decode(self, batches: Iterator[Batch]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield pictures and labels of each batch; what an earlier call had in flight is dropped.

        Raises:
            DecodeError: a batch cannot be decoded.
            DeviceError: the pipeline cannot be built.
            IngestError: a newer call has taken over the pipeline.
        """
        run = self._run = object()
        self._rewind()
        self._feed.batches = batches
        if self._pipeline is None:
            self._pipeline = _build(self.settings, self._feed)
        while (outputs := self._next_outputs()) is not None:
            yield self._to_torch(outputs)
            if self._run is not run:
                raise IngestError("this iteration is over: its loader was closed, or a newer iteration began")

    def close(self) -> None:
        """Free the pipeline with its threads and memory; tensors handed out stay valid."""
        self._run = None
        self._drop()

    def _next_outputs(self) -> Any:  # noqa: ANN401
        """Return DALI's outputs for the oldest batch in flight, None at the end of the epoch."""
        self._started = True
        try:
            outputs = self._pipeline.run()
        except StopIteration:
            self._pipeline.reset()
            self._started = False
            return None
        except IngestError:
            raise
        except (RuntimeError, ValueError, IndexError) as error:
            failed = list(self._feed.in_flight)
            self._drop()  # DALI cannot go on after an error
            raise DecodeError(self._find_culprit(failed), _reason(error)) from error
        self._feed.in_flight.popleft()
        return outputs

    def _rewind(self) -> None:
        """Run an unfinished epoch to its end with nothing more fed, so that a new one may begin."""
        self._feed.batches = iter(())
        try:
            while self._started and self._next_outputs() is not None:
                pass
        except DecodeError:
            self._drop()

    def _drop(self) -> None:
        self._pipeline = None
        self._started = False
        self._feed.in_flight.clear()

    def _to_torch(self, outputs: Any) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ANN401
        """Hand over DALI's own memory: with exec_dynamic each batch has its own, freed with the tensor."""
        images, labels = (from_dlpack(output.as_tensor()) for output in outputs)
        return images.permute(0, 3, 1, 2) if self.settings.channels_last else images, labels

    def _find_culprit(self, failed: list[Batch]) -> int | None:
        """Return the number of the first sample that fails by itself: DALI does not say which it was."""
        batch = next((batch for batch in failed if not self._works(batch)), None)
        if batch is None:
            return None
        begin, end = 0, len(batch.positions)
        while end - begin > 1:
            middle = (begin + end) // 2
            begin, end = (middle, end) if self._works(batch.part(begin, middle)) else (begin, middle)
        return int(batch.positions[begin])

    def _works(self, batch: Batch) -> bool:
        pipeline = _build(dataclasses.replace(self.settings, prefetch=1), _Feed(iter([batch])))
        try:
            pipeline.run()
        except (RuntimeError, ValueError, IndexError):
            return False
        return True


def _reason(error: Exception) -> str:
    """Return the line of DALI's report that says what happened."""
    report = str(error)
    lines = [line.strip() for line in report.partition("encountered:")[2].splitlines() if line.strip()]
    return lines[0].rstrip(" :") if lines else report.strip().splitlines()[0]


def _build(settings: Settings, feed: _Feed) -> Any:  # noqa: ANN401
    on_gpu = settings.device.type == "cuda"
    try:
        pipeline = Pipeline(
            batch_size=settings.batch_size,
            num_threads=settings.num_threads,
            device_id=settings.device.index if on_gpu else None,
            prefetch_queue_depth=settings.prefetch,
            exec_dynamic=True,
        )
        with pipeline:
            pipeline.set_outputs(*_graph(settings, feed, "gpu" if on_gpu else "cpu"))
        pipeline.build()
    except RuntimeError as error:
        raise DeviceError(
            f"DALI cannot run on {settings.device} ({_reason(error)}): the driver and DALI must fit:"
            ' `pip install "ingest[load,cuda13]"`, or `"ingest[load,cuda12]"` for an older driver'
        ) from error
    return pipeline


def _graph(settings: Settings, feed: _Feed, device: str) -> tuple[Any, Any]:
    """Define the pipeline: the same on both devices but for the name of the decoder's device."""
    encoded, labels, *windows = fn.external_source(
        source=feed, no_copy=True, **(_WINDOWED_INPUTS if settings.random_windows else _INPUTS)
    )
    decoder: dict[str, Any] = (
        {"device": "mixed", "hw_decoder_load": _HARDWARE_DECODER_LOAD} if device == "gpu" else {}
    )
    images = fn.decoders.image(encoded, output_type=types.RGB, **decoder)
    mirror: Any = 0
    if settings.random_windows:
        begin, end, mirror = windows
        side = (settings.size, settings.size)
        images = fn.resize(images, size=side, roi_start=begin, roi_end=end, interp_type=types.INTERP_LINEAR)
    images = fn.crop_mirror_normalize(
        images,
        crop=(settings.size, settings.size),
        mirror=mirror,
        mean=list(settings.mean),
        std=list(settings.std),
        dtype=_DTYPES[settings.dtype],
        output_layout="HWC" if settings.channels_last else "CHW",
    )
    return images, labels.gpu() if device == "gpu" else labels


_INPUTS: dict[str, Any] = {"num_outputs": 2, "dtype": [types.UINT8, types.INT64], "ndim": [1, 0]}
_WINDOWED_INPUTS: dict[str, Any] = {
    "num_outputs": 5,
    "dtype": [types.UINT8, types.INT64, types.FLOAT, types.FLOAT, types.INT32],
    "ndim": [1, 0, 1, 1, 0],
}
