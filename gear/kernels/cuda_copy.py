"""How the lanes of a warp copy and fill memory together on a GPU, in the widest words that addresses allow.

Consecutive lanes take consecutive words, so that a warp's access is one piece of memory. Addresses are integers. A lane
calls with its own number; nothing here waits for other lanes.
"""

from __future__ import annotations

from gear.kernels.cuda_seam import (
    device,
    move_1,
    move_2,
    move_4,
    move_8,
    move_16,
    move_four_4,
    move_four_8,
    move_four_16,
    quotient,
    store_1,
    store_2,
    store_4,
    store_8,
    store_16,
)


@device
def widest(bits):
    """The widest word, up to 16 bytes, that a number of bytes is a multiple of; several numbers or-ed together."""
    bits |= 16
    return bits & -bits


@device
def move_word(target, source, word):
    """Copy one word of 16, 8, 4, 2 or 1 bytes."""
    if word == 16:
        move_16(target, source)
    elif word == 8:
        move_8(target, source)
    elif word == 4:
        move_4(target, source)
    elif word == 2:
        move_2(target, source)
    else:
        move_1(target, source)


@device
def clear_word(target, word):
    """Write zeros to one word of 16, 8, 4, 2 or 1 bytes."""
    if word == 16:
        store_16(target, 0)
    elif word == 8:
        store_8(target, 0)
    elif word == 4:
        store_4(target, 0)
    elif word == 2:
        store_2(target, 0)
    else:
        store_1(target, 0)


@device
def copy_words(target, source, count, word, lane, lanes):
    """Copy `count` words that lie side by side; of the wide ones each lane has four under way."""
    step, left = lanes * word, count - lane
    target, source, far = target + lane * word, source + lane * word, 4 * step
    while left > 3 * lanes and word >= 4:
        if word == 16:
            move_four_16(target, source, step)
        elif word == 8:
            move_four_8(target, source, step)
        else:
            move_four_4(target, source, step)
        target, source, left = target + far, source + far, left - 4 * lanes
    while left > 0:
        move_word(target, source, word)
        target, source, left = target + step, source + step, left - lanes


@device
def copy_run(target, source, size, lane, lanes):
    """Copy `size` bytes.

    A run that one word of each lane covers takes the word that both ends allow. A longer one takes the widest word
    that the distance of the two addresses allows, and single bytes up to the first and behind the last of them.
    """
    word = widest(target | source | size)
    if size > word * lanes:
        word = widest(target - source)
        head = min(-target & (word - 1), size)
        for i in range(lane, head, lanes):
            move_1(target + i, source + i)
        tail = (size - head) & (word - 1)
        for i in range(size - tail + lane, size, lanes):
            move_1(target + i, source + i)
        target, source, size = target + head, source + head, size - head - tail
    copy_words(target, source, quotient(size, word), word, lane, lanes)


@device
def copy_rows(target, apart, source, stride, width, rows, lane, lanes):
    """Copy rows of `width` bytes that lie `stride` bytes apart to where they lie `apart` bytes apart."""
    if width == 0 or rows <= 0:
        return
    if stride == width and apart == width:
        copy_run(target, source, rows * width, lane, lanes)
        return
    word = widest(target | source | stride | apart | width)
    each = quotient(width, word)
    row = quotient(lane, each)
    at = lane - row * each
    rows_on = quotient(lanes, each)
    on = lanes - rows_on * each
    while row < rows:
        move_word(target + row * apart + at * word, source + row * stride + at * word, word)
        row, at = row + rows_on, at + on
        if at >= each:
            row, at = row + 1, at - each


@device
def fill(target, size, octet, lane, lanes):
    """Write `size` bytes of the same value, 0 to 127."""
    head = min(-target & 15, size)
    tail = (size - head) & 15
    words = (size - head) >> 4
    for i in range(lane, head, lanes):
        store_1(target + i, octet)
    for i in range(size - tail + lane, size, lanes):
        store_1(target + i, octet)
    for i in range(lane, words, lanes):
        store_16(target + head + 16 * i, octet * 0x0101010101010101)
