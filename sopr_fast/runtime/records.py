"""TFRecord files and the protobuf messages in them, read without TensorFlow."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from .files import open_regular

LARGEST = 64 << 20  # bytes of a record, by default
_CHECKED = 4096  # bytes; longer records are not checked, since a check sum in Python takes longer than reading
_CRC_POLYNOMIAL = 0x82F63B78


def records(path: Path, *, largest: int = LARGEST, whole: bool = False) -> Iterator[bytes]:
    """Yield the records of a TFRecord file.

    Args:
        path: File to read.
        largest: Most bytes of a record.
        whole: Raise where the last record is cut short, as that of a run that goes on; otherwise it ends the file.

    Raises:
        ValueError: A check sum differs, a record is too large, or the file is cut short.
    """
    with open_regular(path) as file:
        while head := file.read(12):
            start, length, record = file.tell() - len(head), 0, b""
            if len(head) == 12:
                length, check = struct.unpack("<QI", head)
                if masked_crc(head[:8]) != check:
                    raise ValueError(f"the check sum of the record at byte {start} differs")
                if length > largest:
                    raise ValueError(f"a record of {length:,} bytes")
                record = file.read(length + 4)
            if len(record) < length + 4:
                if whole:
                    raise ValueError(f"the record at byte {start} is cut short")
                return
            if length < _CHECKED and masked_crc(record[:-4]) != struct.unpack("<I", record[-4:])[0]:
                raise ValueError(f"the check sum of the record at byte {start} differs")
            yield record[:-4]


def fields(message: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Yield number and value of the fields of a protobuf message; 32 and 64 bits are floats.

    Raises:
        ValueError: The message is damaged.
    """
    place = 0
    while place < len(message):
        key, place = varint(message, place)
        kind = key & 7
        if kind == 0:
            value, place = varint(message, place)
            yield key >> 3, value
            continue
        length = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            length, place = varint(message, place)
        if length is None or place + length > len(message):
            raise ValueError("a damaged message")
        part = message[place : place + length]
        place += length
        yield key >> 3, part if kind == 2 else struct.unpack("<d" if kind == 1 else "<f", part)[0]


def varint(message: bytes, place: int) -> tuple[int, int]:
    """Return the integer at a place of a message, and the place after it.

    Raises:
        ValueError: The message ends within it.
    """
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            break
        byte = message[place]
        value |= (byte & 127) << shift
        place += 1
        if byte < 128:
            return value, place
    raise ValueError("a damaged message")


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_CRC_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_CRC = _crc_table()


def masked_crc(data: bytes) -> int:
    """Return the CRC-32C of the data as TFRecord files store it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 255]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
