"""Which methods need a package that is not there."""

from __future__ import annotations

from importlib.util import find_spec

from budgetvdr.compress.clustering import Clustering
from budgetvdr.compress.record import Method
from budgetvdr.compress.ward import WardPooling
from budgetvdr.compress.wardfold import WardFold
from budgetvdr.errors import MissingExtraError


def missing_extra(method: Method | None) -> MissingExtraError | None:
    """What to raise before any page is encoded for a method that cannot run here; None where it can.

    Packages are looked for and not imported, which would take a second.
    """
    if isinstance(method, Clustering):
        package, name = "sklearn", "scikit-learn"
    elif isinstance(method, WardFold | WardPooling):
        package, name = "scipy", "scipy"
    else:
        return None
    if find_spec(package) is not None:
        return None
    return MissingExtraError(
        f'{type(method).__name__} needs {name}, which is not installed: pip install "budgetvdr[compress]"'
    )
