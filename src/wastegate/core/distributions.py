"""The few distribution functions that intervals need, in plain Python: no table, no data and no test enters here."""

from __future__ import annotations

import math
from statistics import NormalDist

_TINY = 1e-300
_ENOUGH = 1e-14
_TERMS = 20_000
"""The continued fraction takes about the square root of its larger parameter; this serves beyond 10^8."""


def normal_quantile(p: float) -> float:
    """Where the standard normal has ``p`` (between 0 and 1) below it."""
    return NormalDist().inv_cdf(p)


def normal_cdf(x: float) -> float:
    """The share of the standard normal below ``x``."""
    return NormalDist().cdf(x)


def beta_cdf(x: float, a: float, b: float) -> float:
    """The share of Beta(a, b) below ``x``: the regularised incomplete beta function, ``a`` and ``b`` above 0.

    By its continued fraction (NIST Handbook of Mathematical Functions, 8.17.22) in Lentz's order of evaluation.
    """
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1.0) / (a + b + 2.0):  # where the fraction would converge slowly its mirror image is quick
        return 1.0 - beta_cdf(1.0 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x) - math.log(a)
    )
    value, upper, lower, step, term = 1.0, 1.0, 0.0, 2.0, 0
    while abs(1.0 - step) >= _ENOUGH and term < _TERMS:
        half = term // 2
        if term == 0:
            part = 1.0
        elif term % 2 == 0:
            part = half * (b - half) * x / ((a + 2 * half - 1.0) * (a + 2 * half))
        else:
            part = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1.0))
        lower = 1.0 / _away(1.0 + part * lower)
        upper = _away(1.0 + part / upper)
        step = lower * upper
        value *= step
        term += 1
    return front * (value - 1.0)


def _away(value: float) -> float:
    """The value, kept from being 0."""
    return value if abs(value) > _TINY else _TINY


def student_cdf(t: float, df: float) -> float:
    """The share of Student's t with ``df`` degrees of freedom (above 0) below ``t``."""
    tail = 0.5 * beta_cdf(df / (df + t * t), df / 2.0, 0.5)
    return 1.0 - tail if t > 0 else tail


def student_quantile(p: float, df: float) -> float:
    """Where Student's t with ``df`` degrees of freedom has ``p`` (between 0 and 1) below it."""
    if p < 0.5:
        return -student_quantile(1.0 - p, df)
    # Newton from the normal's quantile, which lies on the left: the share is concave there, so no step goes too far.
    front = math.lgamma((df + 1.0) / 2.0) - math.lgamma(df / 2.0) - 0.5 * math.log(df * math.pi)
    t, step = normal_quantile(p), math.inf
    while step > 1e-12 * (1.0 + t):
        density = math.exp(front - (df + 1.0) / 2.0 * math.log1p(t * t / df))
        step = (p - student_cdf(t, df)) / density
        t += step
    return t


def binomial_cdf(k: int, n: int, p: float) -> float:
    """The chance of at most ``k`` successes in ``n`` tries that each succeed with chance ``p``."""
    if k < 0:
        return 0.0
    if k >= n:
        return 1.0
    return 1.0 - beta_cdf(p, k + 1.0, float(n - k))
