"""Print the metrics of the reference implementation, molsets 0.3.1, on the molecules of test_moses.py.

It was written for packages of 2020; what they have lost since is put back here before it is imported.
"""

import sys
import types
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from pprint import pprint

import numpy as np
import pandas as pd

TESTS = Path(__file__).parents[1] / "tests"


def reference() -> types.ModuleType:
    """Import the module of metrics, without the models that the package imports first."""
    package = module_from_spec(find_spec("moses"))
    six = types.ModuleType("rdkit.six")
    six.iteritems = dict.items
    sys.modules |= {"moses": package, "rdkit.six": six}
    np.NaN = np.nan
    np.row_stack = np.vstack
    pd.DataFrame.append = lambda own, other, sort: pd.concat([own, other], sort=sort)
    import moses.metrics.metrics

    return moses.metrics.metrics


if __name__ == "__main__":
    sys.path += [str(TESTS), *(str(path.parent) for path in TESTS.rglob("test_moses.py"))]
    from test_moses import GENERATED, SCAFFOLDS, TEST, TRAIN

    found = reference().get_all_metrics(
        GENERATED, k=[10, 30], test=TEST, test_scaffolds=SCAFFOLDS, train=TRAIN
    )
    pprint({name: float(value) for name, value in found.items()}, sort_dicts=False)
