"""Triton kernels for the convolutions that cuDNN is slow at; ``ops`` uses them, where Triton is there at all.

All have stride 1, no dilation and one group: z[o, h, w] = Σ a[i, h + kh − ph, w + kw − pw] W[o, i, kh, kw].
Sums of products are float32 whatever the operands are. A tensor of planes is stored with its channels last (``LAST``)
or first; the image of a narrow convolution has one channel, so that both are the same.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

from typing import Any

try:
    import triton
    import triton.language as tl
except Exception:  # a Triton that breaks while it is imported is no Triton
    AVAILABLE, INTERPRETED = False, False

    def jit(function: Any = None, **_: Any) -> Any:
        return function if function is not None else lambda kernel: kernel
else:
    AVAILABLE, jit = True, triton.jit
    INTERPRETED = bool(triton.knobs.runtime.interpret)
    """Whether kernels run on the CPU, one program after the other: TRITON_INTERPRET=1 when Triton was imported."""


@jit(do_not_specialize=["per", "wide", "total"])
def weight_partial(
    cotangent,  # δ: (B, O, H, W)
    image,  # a: (B, I, HI, WI)
    partial,  # (splits, KH, O, KW, I)
    H,
    W,
    HI,
    WI,
    ph,
    pw,
    per,  # blocks of pixels a program
    wide,  # blocks of pixels a row
    total,  # blocks of pixels in all
    O: tl.constexpr,  # noqa: E741
    I: tl.constexpr,  # noqa: E741
    KH: tl.constexpr,
    KW: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    BLOCK: tl.constexpr,
    LAST: tl.constexpr,
):
    """dW[o, i, kh, kw] = Σ_{b,h,w} δ[o, h, w] a[i, h + kh − ph, w + kw − pw], summed over one range of the pixels.

    One product of matrices yields ROWS kernel rows and COLS kernel columns at once, (ROWS·O) × (COLS·I): the program
    follows rows r = h + j of δ, j < ROWS, so that all of them meet the one row r + kh_0 − ph of a.
    """
    across: tl.constexpr = (KW + COLS - 1) // COLS
    top = (tl.program_id(0) // across) * ROWS
    left = (tl.program_id(0) % across) * COLS
    split = tl.program_id(1)
    m = tl.arange(0, ROWS * O)
    j, o = m // O, m % O
    n = tl.arange(0, COLS * I)
    q, i = n // I, n % I
    k = tl.arange(0, BLOCK)
    if LAST:
        at_cotangent = (k[None, :] - j[:, None] * W) * O + o[:, None]
        at_image = (k[:, None] + q[None, :]) * I + i[None, :]
    else:
        at_cotangent = (o[:, None] * H - j[:, None]) * W + k[None, :]
        at_image = i[None, :] * (HI * WI) + k[:, None] + q[None, :]
    height = H + ROWS - 1
    sums = tl.zeros([ROWS * O, COLS * I], tl.float32)
    for block in range(split * per, tl.minimum(split * per + per, total)):
        row, first = block // wide, (block % wide) * BLOCK
        b, r = row // height, row % height
        source, column = r + top - ph, first + left - pw
        if LAST:
            d_base = ((b * H + r) * W + first) * O
            a_base = ((b * HI + source) * WI + column) * I
        else:
            d_base = (b * O * H + r) * W + first
            a_base = (b * I * HI + source) * WI + column
        h = r - j
        d_there = ((h >= 0) & (h < H))[:, None] & (first + k < W)[None, :]
        at = column + k[:, None] + q[None, :]
        a_there = (at >= 0) & (at < WI) & (source >= 0) & (source < HI)
        d = tl.load(cotangent + d_base + at_cotangent, mask=d_there, other=0.0)
        a = tl.load(image + a_base + at_image, mask=a_there, other=0.0)
        sums = tl.dot(d, a, sums, input_precision="tf32")
    kh, kw = top + j, left + q
    to = ((split * KH + kh[:, None]) * O + o[:, None]) * (KW * I) + kw[None, :] * I + i[None, :]
    tl.store(partial + to, sums, mask=(kh < KH)[:, None] & (kw < KW)[None, :])


@jit(do_not_specialize=["per", "wide", "total"])
def narrow_weight_partial(
    cotangent,  # δ: (B, C, H, W)
    image,  # a: (B, 1, HI, WI)
    partial,  # (splits, C, TAPS)
    H,
    W,
    HI,
    WI,
    ph,
    pw,
    per,
    wide,
    total,
    C: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    TAPS: tl.constexpr,  # a power of two, KH·KW or more
    BLOCK: tl.constexpr,
    LAST: tl.constexpr,
):
    """The same for an image of one channel: the columns of the product are the taps, and δ is read once."""
    split = tl.program_id(0)
    c, k, t = tl.arange(0, C), tl.arange(0, BLOCK), tl.arange(0, TAPS)
    kh, kw = t // KW, t % KW
    if LAST:
        at_cotangent = k[None, :] * C + c[:, None]
    else:
        at_cotangent = c[:, None] * (H * W) + k[None, :]
    sums = tl.zeros([C, TAPS], tl.float32)
    for block in range(split * per, tl.minimum(split * per + per, total)):
        row, first = block // wide, (block % wide) * BLOCK
        b, h = row // H, row % H
        if LAST:
            d_base = ((b * H + h) * W + first) * C
        else:
            d_base = (b * C * H + h) * W + first
        d_there = (first + k < W)[None, :] & (c < C)[:, None]
        d = tl.load(cotangent + d_base + at_cotangent, mask=d_there, other=0.0)
        y, x = h + kh - ph, first - pw + k[:, None] + kw[None, :]
        a_there = ((y >= 0) & (y < HI) & (kh < KH))[None, :] & (x >= 0) & (x < WI)
        a = tl.load(image + (b * HI + y)[None, :] * WI + x, mask=a_there, other=0.0)
        sums = tl.dot(d, a, sums, input_precision="tf32")
    tl.store(partial + (split * C + c[:, None]) * TAPS + t[None, :], sums)


@jit
def narrow_input_gradient(
    cotangent,  # δ: (B, C, H, W)
    weight,  # (C, 1, KH, KW)
    result,  # (B, 1, HI, WI)
    H,
    W,
    HI,
    WI,
    ph,
    pw,
    step,  # columns of the image a program
    C: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    ROWS: tl.constexpr,  # rows of the image a program
    TAPS: tl.constexpr,  # a power of two, KW or more
    BLOCK: tl.constexpr,  # columns of δ
    WHOLE: tl.constexpr,  # whether BLOCK holds a whole row
    LAST: tl.constexpr,
):
    """∂a[y, x] = Σ_{c,kh,kw} δ[c, y − kh + ph, x − kw + pw] W[c, kh, kw]: a product over channels, then a skew sum.

    S[u, (y, kw)] = Σ_{c,kh} δ[c, y − kh + ph, u] W[c, kh, kw] is a product of matrices for each row of δ, and
    ∂a[y, x] = Σ_kw S[x − kw + pw, (y, kw)]. Every row of δ is read once by a program.
    """
    y0, x0, b = tl.program_id(0) * ROWS, tl.program_id(1) * step, tl.program_id(2)
    u0 = 0 if WHOLE else x0 - (KW - 1) + pw
    c, u, n = tl.arange(0, C), tl.arange(0, BLOCK), tl.arange(0, ROWS * TAPS)
    r, q = n // TAPS, n % TAPS
    if LAST:
        at_cotangent = u[:, None] * C + c[None, :]
    else:
        at_cotangent = u[:, None] + c[None, :] * (H * W)
    inside = (u0 + u >= 0) & (u0 + u < W)
    sums = tl.zeros([BLOCK, ROWS * TAPS], tl.float32)
    for down in range(ROWS + KH - 1):
        s = y0 + ph - (KH - 1) + down
        if LAST:
            base = ((b * H + s) * W + u0) * C
        else:
            base = (b * C * H + s) * W + u0
        there = inside & (s >= 0) & (s < H)
        d = tl.load(cotangent + base + at_cotangent, mask=there[:, None], other=0.0)
        kh = r + (KH - 1) - down  # = y0 + r − s + ph
        used = (kh >= 0) & (kh < KH) & (q < KW)
        w = tl.load(weight + c[:, None] * (KH * KW) + (kh * KW + q)[None, :], mask=used[None, :], other=0.0)
        sums = tl.dot(d, w, sums, input_precision="tf32")
    at = x0 - u0 + pw + u[:, None] - q[None, :]
    found = tl.gather(sums, tl.minimum(tl.maximum(at, 0), BLOCK - 1), axis=0)
    found = tl.where((at >= 0) & (at < BLOCK), found, 0.0)
    lines = tl.sum(tl.reshape(found, [BLOCK, ROWS, TAPS]), axis=2)
    y = y0 + tl.arange(0, ROWS)
    x = x0 + u
    kept = ((u < step) & (x < WI))[:, None] & (y < HI)[None, :]
    tl.store(result + (b * HI + y)[None, :] * WI + x[:, None], lines, mask=kept)


@jit
def narrow_forward(
    image,  # a: (B, 1, HI, WI)
    weight,  # (C, 1, KH, KW)
    result,  # (B, C, H, W)
    H,
    W,
    HI,
    WI,
    ph,
    pw,
    C: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    TAPS: tl.constexpr,  # a power of two, KH·KW or more
    BLOCK: tl.constexpr,
    LAST: tl.constexpr,
):
    """z[c, h, w] = Σ_{kh,kw} a[h + kh − ph, w + kw − pw] W[c, kh, kw]: pixels × taps × channels."""
    first, h, b = tl.program_id(0) * BLOCK, tl.program_id(1), tl.program_id(2)
    c, k, t = tl.arange(0, C), tl.arange(0, BLOCK), tl.arange(0, TAPS)
    kh, kw = t // KW, t % KW
    y, x = h + kh - ph, first - pw + k[:, None] + kw[None, :]
    there = ((y >= 0) & (y < HI) & (kh < KH))[None, :] & (x >= 0) & (x < WI)
    a = tl.load(image + (b * HI + y)[None, :] * WI + x, mask=there, other=0.0)
    w = tl.load(weight + c[None, :] * (KH * KW) + t[:, None], mask=(t < KH * KW)[:, None] & (c < C)[None, :], other=0.0)
    z = tl.dot(a, w, input_precision="tf32")
    if LAST:
        to = ((b * H + h) * W + first + k[:, None]) * C + c[None, :]
    else:
        to = ((b * C + c[None, :]) * H + h) * W + first + k[:, None]
    tl.store(result + to, z, mask=(first + k < W)[:, None] & (c < C)[None, :])


@jit(do_not_specialize=["splits", "size"])
def reduce_partial(
    partial,  # (splits, stride)
    result,  # (O, I, KH, KW)
    splits,
    stride,
    size,  # O·I·KH·KW
    O: tl.constexpr,  # noqa: E741
    I: tl.constexpr,  # noqa: E741
    KH: tl.constexpr,
    KW: tl.constexpr,
    TAPS: tl.constexpr,  # 0: partial is (KH, O, KW, I); else (O, TAPS)
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Σ over the ranges of pixels, in the order of the ranges: the same digits in every run."""
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kw, kh = e % KW, (e // KW) % KH
    i, o = (e // (KW * KH)) % I, e // (KW * KH * I)
    if TAPS == 0:
        at = ((kh * O + o) * KW + kw) * I + i
    else:
        at = o * TAPS + kh * KW + kw
    s = tl.arange(0, SPLITS)
    sums = tl.zeros([SPLITS, BLOCK], tl.float32)
    for start in range(0, splits, SPLITS):
        there = (start + s < splits)[:, None] & (e < size)[None, :]
        sums += tl.load(partial + (start + s)[:, None] * stride + at[None, :], mask=there, other=0.0)
    tl.store(result + e, tl.sum(sums, axis=0), mask=e < size)
