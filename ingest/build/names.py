"""What the name of a file says: litter or not, a picture by its ending, its class and its split. Pure."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

SPLIT_NAMES = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val"}
SPLIT_NAMES |= {"test": "test", "testing": "test"}
"""Names of folders, in lower case, that are splits and not classes, and the split that each is."""

_LITTER_NAMES = {
    *(b"thumbs.db", b"ehthumbs.db", b"desktop.ini", b"$recycle.bin", b"system volume information"),  # Windows
    *(
        b"__macosx",
        b"@eadir",
        b"#recycle",
        b"@recycle",
        b"~snapshot",
        b"lost+found",
    ),  # ZIPs of macOS, servers
}
_SIDE_SUFFIXES = frozenset({b"thm"})
"""Endings of pictures that a camera puts beside a photo or a video: the small copy of another file."""

_PICTURE_SUFFIXES = frozenset(
    b"jpg jpeg jpe jfif jfi jif jps mpo png apng gif bmp dib webp tif tiff btf heic heics heif heifs hif "
    b"avif avifs jp2 j2k j2c jpc jpf jpx jph jxl jxr jls pbm pgm ppm pnm tga psd psb exr ico "
    b"3fr arw cr2 cr3 crw dng erf gpr iiq kdc mef mrw nef nrw orf pef raf rw2 rwl sr2 srf srw x3f".split()
)
"""Endings of files that say that they are pictures, and nothing else (as ``raw`` and ``hdr`` may be).

Shrink looks whether they are, and names what is none."""

_REMEMBERED = 4096  # folders: those of files that stand together in a listing

_ESCAPED = re.compile(r"\\x[0-9a-f]{2}")


def skip_reason(path: bytes) -> str | None:
    """Return why the file at `path` is no candidate by its name: ``hidden`` or ``litter``; else None."""
    folder, _, name = path.rpartition(b"/")
    reason = _skip_folder(folder)
    if reason is not None or name.startswith(b"."):
        return reason or "hidden"
    return "litter" if name.lower() in _LITTER_NAMES or suffix_of(name) in _SIDE_SUFFIXES else None


@functools.lru_cache(_REMEMBERED)
def _skip_folder(folder: bytes) -> str | None:
    parts = folder.split(b"/")
    if any(part.startswith(b".") for part in parts):
        return "hidden"
    return "litter" if any(part.lower() in _LITTER_NAMES for part in parts) else None


def claims_to_be_a_picture(path: bytes) -> bool:
    """Return whether the file at `path` says by its ending, in upper or lower case, that it is a picture."""
    return suffix_of(path) in _PICTURE_SUFFIXES


def suffix_of(path: bytes) -> bytes:
    """Return the ending of a name in lower case, empty where it has none."""
    stem, dot, suffix = path.rpartition(b"/")[2].rpartition(b".")
    return suffix.lower() if stem and dot else b""


def stem_of(path: bytes) -> bytes:
    """Return a path without the ending of its name."""
    suffix = suffix_of(path)
    return path[: -len(suffix) - 1] if suffix else path


@functools.lru_cache(_REMEMBERED)
def label_of(name: bytes) -> str:
    r"""Return the label of a class folder: its name, letter for letter; no two folders share one.

    A byte that is no UTF-8 is written ``\xNN``. Where that happens, or a name looks as if it had, each
    backslash of the name itself is doubled.
    """
    text = name.decode("utf-8", "backslashreplace")
    if not _ESCAPED.search(text):
        return text
    return name.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def place(path: bytes, *, has_splits: bool) -> tuple[str | None, str | None]:
    """Return split and label of the file at `path`; None where it lies in no folder of that kind.

    The first folder is the class, as in torchvision's ImageFolder; below split folders, the second.
    """
    *folders, _ = path.split(b"/")
    split = SPLIT_NAMES[label_of(folders.pop(0)).lower()] if has_splits else None
    return split, label_of(folders[0]) if folders else None


def has_split_folders(top_folders: Iterable[str]) -> bool:
    """Return whether the folders under the root are splits rather than classes.

    They are where train stands beside val or test, whatever else is there (annotations, say), or where
    nothing but split folders is there. A lone ``train`` among other names is a class, as of vehicles.
    """
    names = [name.lower() for name in top_folders]
    splits = {SPLIT_NAMES[name] for name in names if name in SPLIT_NAMES}
    if len(splits) > 1:
        return "train" in splits or all(name in SPLIT_NAMES for name in names)
    return splits == {"train"} == {SPLIT_NAMES.get(name) for name in names}
