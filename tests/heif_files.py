"""HEIC and AVIF put together box by box, of what encoders make: to say of a picture whatever a test needs."""

from __future__ import annotations

import functools
import io
import struct

import numpy as np
from PIL import Image

from ingest.build import pillow
from ingest.build.heif_items import read_listing

CODED = {"HEIC": b"hvc1", "AVIF": b"av01"}


def box(name, *parts):
    """Return a box."""
    body = b"".join(parts)
    return struct.pack(">I", 8 + len(body)) + name + body


def full(name, *parts):
    """Return a box with version 0 and no flags."""
    return box(name, bytes(4), *parts)


def ispe(width, height):
    """Return the size of a picture."""
    return full(b"ispe", struct.pack(">II", width, height))


def nclx(primaries, transfer):
    """Return the colours of a picture by code points: full range, matrix of BT.601."""
    return box(b"colr", b"nclx", struct.pack(">HHHB", primaries, transfer, 6, 0x80))


def irot(quarters):
    """Return a rotation by so many times 90 degrees, counter-clockwise."""
    return box(b"irot", bytes([quarters]))


def imir(axis):
    """Return a mirror: 0 exchanges top and bottom, 1 left and right."""
    return box(b"imir", bytes([axis]))


def clap(width, height, right=0, down=0, over=1):
    """Return an aperture whose middle lies so far from the picture's, in halves where `over` is 2."""
    return box(b"clap", struct.pack(">IIIIiIiI", width, 1, height, 1, right, over, down, over))


@functools.cache
def encoded(name, pixels_bytes, shape, quality=95):
    """Return the coded picture and the box of its decoder's settings."""
    pillow._load_plugin(name)
    image = Image.fromarray(np.frombuffer(pixels_bytes, np.uint8).reshape(shape))
    file = io.BytesIO()
    if name == "AVIF":
        image.save(file, "AVIF", quality=quality, subsampling="4:4:4", speed=9)
    else:
        image.save(file, "HEIF", quality=quality, chroma=444)
    data = file.getvalue()
    listing = read_listing(data)
    item = listing.items[listing.primary]
    settings = next(prop for prop in item.properties if prop.name in {b"av1C", b"hvcC"})
    ((begin, end),) = item.extents
    return data[begin:end], box(settings.name, settings.payload(data))


def assembled(name, items, *, references=(), primary=1):
    """Return a file.

    Args:
        name: "HEIC" or "AVIF".
        items: kind, bytes and boxes of properties of each, numbered from 1.
        references: kind, from which item, to which items.
        primary: number of the item that is the picture.
    """
    brand = b"heic" if name == "HEIC" else b"avif"
    head = box(b"ftyp", brand, bytes(4), brand + b"mif1miaf")
    properties, associations = b"", b""
    index = 0
    for number, (_, _, boxes) in enumerate(items, 1):
        associations += struct.pack(">HB", number, len(boxes))
        for prop in boxes:
            index += 1
            properties, associations = (
                properties + prop,
                associations + bytes([0x80 * (prop[4:8] in ESSENTIAL) | index]),
            )
    count = struct.pack(">H", len(items))
    infe = b"".join(
        box(b"infe", b"\2\0\0\0", struct.pack(">HH", number, 0), kind, b"\0")
        for number, (kind, _, _) in enumerate(items, 1)
    )
    iref = b"".join(
        box(kind, struct.pack(f">HH{len(to)}H", begin, len(to), *to)) for kind, begin, to in references
    )

    def meta(offset):
        places = b""
        for number, (_, payload, _) in enumerate(items, 1):
            places += struct.pack(">HHHII", number, 0, 1, offset, len(payload))
            offset += len(payload)
        return full(
            b"meta",
            full(b"hdlr", bytes(4), b"pict", bytes(13)),
            full(b"pitm", struct.pack(">H", primary)),
            full(b"iloc", b"\x44\0", count, places),
            full(b"iinf", count, infe),
            *([full(b"iref", iref)] if iref else []),
            box(
                b"iprp",
                box(b"ipco", properties),
                full(b"ipma", struct.pack(">I", len(items)), associations),
            ),
        )

    offset = len(head) + len(meta(0)) + 8
    return head + meta(offset) + box(b"mdat", *(payload for _, payload, _ in items))


ESSENTIAL = {b"av1C", b"hvcC", b"irot", b"imir", b"clap"}


def one_piece(name, pixels, *properties, size=None, exif=None, quality=95):
    """Return a file of one picture with further properties; `size` is what its header is to say."""
    payload, settings = encoded(name, pixels.tobytes(), pixels.shape, quality)
    stated = size or (pixels.shape[1], pixels.shape[0])
    items = [(CODED[name], payload, [settings, ispe(*stated), *properties])]
    if exif is None:
        return assembled(name, items)
    items.append((b"Exif", struct.pack(">I", 0) + exif, []))
    return assembled(name, items, references=[(b"cdsc", 2, [1])])


def tiled(name, tiles, *properties, columns, size=None):
    """Return a file of a grid of tiles of one size, row by row."""
    height, width = tiles[0].shape[:2]
    rows = len(tiles) // columns
    across, down = size or (width * columns, height * rows)
    layout = struct.pack(">BBBBHH", 0, 0, rows - 1, columns - 1, across, down)
    items = [(b"grid", layout, [ispe(across, down), *properties])]
    for tile in tiles:
        payload, settings = encoded(name, tile.tobytes(), tile.shape)
        items.append((CODED[name], payload, [settings, ispe(width, height)]))
    return assembled(name, items, references=[(b"dimg", 1, list(range(2, len(items) + 1)))])
