"""A path in the place of data: every model reads it or names who does."""

import pytest

from ppl_models import MODELS
from ppl_models.core.errors import PPLError


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_path_as_data_is_named_with_who_reads_files(name, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,0\n0,1\n")
    model = MODELS[name].example().model
    for given in (path, str(path)):
        with pytest.raises(PPLError) as caught:
            model.prepare(given)
        told = str(caught.value)
        read = f"{path}: " in told or "sequences(" in told  # by those whose data come in files of their own
        assert read or "read files" in told or "reads files" in told, told
