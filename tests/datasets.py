"""Small sealed datasets for tests, written with the format's own functions and nothing of the build.

The picture of sample i tells i and where each pixel lies, so a test can check order, pixels and crops:
red grows with x, green with y, blue is a level of its own for each of 64 consecutive samples.
"""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, Any

import numpy as np

from ingest import index, recipe, shard, store

try:
    import simplejpeg
except ImportError:
    from PIL import Image

    simplejpeg = None

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

BLUE_STEP = 4
"""Distance of the blue levels of two samples; a JPEG of quality 95 moves the mean by less than 1."""


def picture_HWC(number: int, width: int = 224, height: int = 224) -> npt.NDArray[np.uint8]:  # noqa: N802
    """Return the picture of sample `number`: uint8 (H, W, 3), smooth, so that JPEG changes it little."""
    image = np.empty((height, width, 3), np.uint8)
    image[..., 0] = np.linspace(0, 255, width)[None, :]
    image[..., 1] = np.linspace(0, 255, height)[:, None]
    image[..., 2] = number % 64 * BLUE_STEP
    return image


def encode(image: npt.NDArray[np.uint8]) -> bytes:
    """Return a 4:4:4 JPEG of quality 95, by whichever encoder is installed."""
    if simplejpeg is not None:
        return bytes(simplejpeg.encode_jpeg(image, quality=95, colorsubsampling="444"))
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=95, subsampling=0)
    return file.getvalue()


def decode(data: bytes) -> npt.NDArray[np.uint8]:
    """Return a JPEG's pixels, uint8 (H, W, 3), by whichever plain decoder is installed."""
    if simplejpeg is not None:
        return np.asarray(simplejpeg.decode_jpeg(data))
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def key_of(number: int) -> str:
    """Return the key of sample `number`."""
    return shard.make_key(f"photo {number}.jpg".encode())


def make_dataset(
    folder: Path,
    *,
    samples: int = 20,
    classes: int = 4,
    shard_size: int = 8,
    size: int = 224,
    width: int | None = None,
    labels: bool = True,
    split: str = "train",
) -> Path:
    """Write a sealed dataset to `folder` and return it.

    Args:
        folder: where; it is created.
        samples: number of pictures; sample i has class i % classes and a reject follows each shard's last.
        classes: number of classes.
        shard_size: samples in a full shard; the last holds the rest.
        size: height of the pictures, and the recipe's size.
        width: width of the pictures where it is not `size`; the recipe then is ``shortest``.
        labels: whether there are labels at all.
        split: name of the only split.
    """
    cut = recipe.Recipe(size=size, fit="cover" if width is None else "shortest", quality=95)
    numbers = [range(begin, min(begin + shard_size, samples)) for begin in range(0, samples, shard_size)]
    entries = [
        _write_shard(
            str(folder), f"{split}/{i:06d}-{cut.hash()[:8]}", part, (width or size, size), classes * labels
        )
        for i, part in enumerate(numbers)
    ]
    names = tuple(f"class {number}" for number in range(classes)) if labels else ()
    sealed = index.Index(
        recipe=cut,
        engines={"test": "1"},
        classes=names,
        fields=("jpg", "cls") if labels else ("jpg",),
        splits={split: tuple(entries)},
        rejects={"truncated": len(entries)},
        mean=(0.5, 0.5, 0.25),
        std=(0.25, 0.25, 0.125),
    )
    index.write_index(str(folder), sealed)
    return folder


def _write_shard(
    dataset: str, name: str, numbers: range, shape: tuple[int, int], classes: int
) -> index.ShardEntry:
    rows, members = [], []
    with store.create(store.join(dataset, f"{name}.tar")) as file:
        tar = shard.TarWriter(file)
        for number in numbers:
            fields = {"jpg": encode(picture_HWC(number, *shape))}
            if classes:
                fields["cls"] = str(number % classes).encode()
            members.append((key_of(number), tar.add(key_of(number), fields)))
            rows.append(_row(number, members[-1][1], shape, classes))
        num_bytes, sha256 = tar.close()
    store.write_bytes(store.join(dataset, f"{name}.idx"), shard.format_offsets(members, len(members)))
    rows.append(_reject(f"broken after {numbers[-1]}.jpg"))
    summary = shard.ShardSummary(
        name=name,
        samples=len(members),
        rejects=1,
        bytes=num_bytes,
        sha256=sha256,
        pixels=len(members) * shape[0] * shape[1],
        pixel_sum=(0, 0, 0),
        pixel_sum_squares=(0, 0, 0),
        engines={"test": "1"},
    )
    shard.write_receipt(dataset, summary, rows)
    return index.ShardEntry(name=name, samples=len(members), bytes=num_bytes, sha256=sha256)


def _row(number: int, members: list[shard.Member], shape: tuple[int, int], classes: int) -> dict[str, Any]:
    row = {
        **_source(f"photo {number}.jpg"),
        "status": "sample",
        "width": shape[0],
        "height": shape[1],
        "image_field": "jpg",
        "image_offset": members[0].offset,
        "image_bytes": members[0].size,
    }
    if classes:
        row |= {"label": f"class {number % classes}", "class_id": number % classes}
        row |= {"class_offset": members[1].offset, "class_bytes": members[1].size}
    return row


def _reject(name: str) -> dict[str, Any]:
    return {**_source(name), "status": "rejected", "code": "truncated", "reason": "ends early"}


def _source(name: str) -> dict[str, Any]:
    return {
        "key": shard.make_key(name.encode()),
        "path": name.encode(),
        "source": f"/photos/{name}",
        "source_version": "mtime:1",
        "source_bytes": 1,
        "source_sha256": hashlib.sha256(name.encode()).hexdigest(),
        "split": "train",
    }
