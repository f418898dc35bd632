"""Random lives of the engine: a seed decides workload and faults, every token is checked."""

from .life import Life
from .seeds import Tally, run_seeds
from .settings import LifeSettings, Outcome

__all__ = ["Life", "LifeSettings", "Outcome", "Tally", "run_seeds"]
