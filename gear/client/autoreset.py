"""What vectorised environments do after an episode's end, in Gymnasium's terms.

``next_step``: the step after an end ignores the action and returns the next episode's first observation; it is no
transition. ``same_step``: the step that ends an episode already returns the next one's first observation, and the
final one comes in ``infos``. ``disabled``: the caller resets; every step is a transition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from gear.errors import DataError

Autoreset = Literal["next_step", "same_step", "disabled"]

_MODES: dict[str, Autoreset] = {"nextstep": "next_step", "samestep": "same_step", "disabled": "disabled"}


def autoreset_mode(mode: object) -> Autoreset | None:
    """A mode by its name or as `gymnasium.vector.AutoresetMode`; None stays None.

    Raises
    ------
    DataError
    """
    if mode is None:
        return None
    name = str(getattr(mode, "value", mode)).lower().replace("_", "").replace("-", "")
    if name not in _MODES:
        raise DataError(
            f"autoreset: expected 'next_step', 'same_step', 'disabled' or envs.metadata['autoreset_mode'], got {mode!r}"
        )
    return _MODES[name]


def final_observation(observations: Any, infos: Mapping[str, Any]) -> Any:
    """The observations after a step of Gymnasium's vector environments, before any reset.

    Parameters
    ----------
    observations : dtype[N, *shape], or dicts and tuples of them
        What ``envs.step`` returned.
    infos : dict
        What it returned besides. Environments that reset in the same step put the final observations of the
        episodes that ended there (``final_obs``, with a mask ``_final_obs``); those of other environments do not.

    Returns
    -------
    Like `observations`; they themselves if nothing was reset in this step, else a copy with the final
    observations in their rows.
    """
    for name in ("final_obs", "final_observation"):  # the second until Gymnasium 1.1
        finals = infos.get(name)
        if finals is not None:
            there = infos.get(f"_{name}")
            where = np.array([f is not None for f in finals]) if there is None else np.asarray(there)
            return _replaced(observations, finals, np.flatnonzero(where).tolist())
    return observations


def _replaced(observations: Any, finals: Any, where: list[int]) -> Any:
    """Copies of the arrays with the rows `where` of `finals`, a sequence of one observation per environment."""
    if isinstance(observations, Mapping):
        return {k: _replaced(v, {i: finals[i][k] for i in where}, where) for k, v in observations.items()}
    if isinstance(observations, tuple):
        return tuple(_replaced(v, {i: finals[i][k] for i in where}, where) for k, v in enumerate(observations))
    array = np.array(observations)
    for i in where:
        array[i] = finals[i]
    return array
