"""Parameters above 0 that make a model's figures come near to measured ones. Arithmetic only: what the model is, and
what was measured, its callers know."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Model = Callable[[list[Values]], list[Values]]
"""Sets of parameters → for each, the logarithms of the model's figures. Several at once, so that they can be computed
in parallel."""

_HUBER = 0.3
"""Logarithmic error (about 30 %) from which on a figure pulls no harder: a few odd measurements must not decide."""
_STEP = 0.05


def descend(model: Model, measured: Values, start: Values, slack: Values, rounds: int) -> Values:
    """Gauss–Newton on logarithms. ``measured``: logarithms, NaN where there is none. ``slack``: by how much, as a
    logarithm, each parameter may depart from ``start`` before it counts as much as one figure that is off by as much as
    figures typically are."""
    here = np.log(start)
    (figures,) = model([np.exp(here)])
    best, best_at = _loss(figures, measured, here, np.log(start), slack), here
    for _ in range(rounds):
        moved = [here + _STEP * unit for unit in np.eye(len(here))]
        slopes = np.array([(other - figures) / _STEP for other in model([np.exp(one) for one in moved])]).T
        move = _solve(figures, measured, slopes, here - np.log(start), slack)
        tries = [here + share * move for share in (1.0, 0.5, 0.2)]
        outcomes = model([np.exp(one) for one in tries])
        losses = [_loss(one, measured, at, np.log(start), slack) for one, at in zip(outcomes, tries, strict=True)]
        pick = int(np.argmin(losses))
        if losses[pick] >= best:
            break
        here, figures = tries[pick], outcomes[pick]
        best, best_at = losses[pick], here
    return np.exp(best_at)


def _solve(figures: Values, measured: Values, slopes: Values, off: Values, slack: Values) -> Values:
    known = ~np.isnan(measured)
    error, slopes = (measured - figures)[known], slopes[known]
    weight = np.minimum(1.0, _HUBER / np.maximum(np.abs(error), 1e-12))
    typical = 0.1
    left = slopes.T @ (slopes * weight[:, None]) / typical**2 + np.diag(1 / slack**2)
    right = slopes.T @ (error * weight) / typical**2 - off / slack**2
    return np.clip(np.linalg.solve(left, right), -0.7, 0.7)


def _loss(figures: Values, measured: Values, at: Values, start: Values, slack: Values) -> float:
    error = np.abs((measured - figures)[~np.isnan(measured)]) / 0.1
    edge = _HUBER / 0.1
    huber = np.where(error <= edge, error**2 / 2, edge * (error - edge / 2))
    return float(huber.sum() + (((at - start) / slack) ** 2).sum() / 2)
