"""tqdm's bars: of a notebook where it can show them, else plain ones, which are no reason to warn anybody.

Pyro imports the same; whoever imports it first sees the warning.
"""

import warnings

from tqdm import TqdmWarning

with warnings.catch_warnings():
    warnings.simplefilter("ignore", TqdmWarning)  # a notebook without ipywidgets
    from tqdm.auto import tqdm as tqdm
