"""tqdm's bars, imported before Pyro imports them: in a notebook without widgets they warn of being plain ones."""

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "IProgress not found")
    import tqdm.auto  # noqa: F401
