"""Random simulations of the engine: a seed determines workload and faults; tokens are checked."""

from .life import Life
from .seeds import run_seeds
from .settings import LifeSettings, Outcome

__all__ = ["Life", "LifeSettings", "Outcome", "run_seeds"]
