"""Looks for the settings with the highest capacity, with optuna's TPE (Bergstra et al., 2011)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import ConfigError
from .capacity import Capacity, Planner
from .space import Settings, Space

if TYPE_CHECKING:
    import optuna

JOURNAL = "trials.log"
MAX_REPEATS = 10
"""The sampler repeats settings. It is asked this many times per wanted trial, at most."""
_OPTUNA = "`tokenmill tune` needs optuna: pip install optuna"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Settings that were tried."""

    settings: Settings
    capacity: Capacity


OnTrial = Callable[[int, Trial], None]
"""Called with the number of settings so far, and the last ones."""


def search(
    planner: Planner, space: Space, num_trials: int, folder: Path, seed: int, on_trial: OnTrial
) -> list[Trial]:
    """Try `num_trials` different settings, the given ones first; best first.

    Trials are kept in a file of `folder`, and a search that was interrupted goes on from there.
    Raises ConfigError without optuna.
    """
    study = _open(folder, seed)
    found: dict[tuple[int, ...], Trial] = {}

    def note(indexes: dict[str, int]) -> Capacity:
        settings = space.settings(indexes)
        trial = Trial(settings=settings, capacity=planner.capacity(settings))
        found[tuple(indexes.values())] = trial
        on_trial(len(found), trial)
        return trial.capacity

    for old in study.trials:
        if old.values:
            note({key: old.params[key] for key in space.values})
    wanted = min(num_trials, space.size)
    for combination in itertools.islice(
        space.combinations(), wanted if wanted == space.size else 1
    ):
        if combination not in found:
            study.enqueue_trial(dict(zip(space.values, combination, strict=True)))
    num_asked = 0
    while len(found) < wanted and num_asked < MAX_REPEATS * wanted:
        num_asked += 1
        asked = study.ask()
        study.tell(asked, note(_suggest(asked, space)).goodput)
    return sorted(found.values(), key=lambda trial: -trial.capacity.goodput)


def _suggest(trial: optuna.Trial, space: Space) -> dict[str, int]:
    """An index of each setting: the sampler learns which are good."""
    return {key: trial.suggest_int(key, 0, len(values) - 1) for key, values in space.values.items()}


def _open(folder: Path, seed: int) -> optuna.Study:
    try:
        import optuna
        from optuna.storages.journal import JournalFileBackend
    except ImportError as error:
        raise ConfigError(_OPTUNA) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
    study = optuna.create_study(
        study_name="tune", storage=storage, direction="maximize", load_if_exists=True
    )
    # A search that goes on must not draw the same settings again.
    study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials), multivariate=True)
    return study
