"""Messages of the suite as the command line says them: columns and rows, and options in place of arguments."""

import warnings

import pytest
import typer

from custom_inference.faces.command_line.app import _report_errors
from custom_inference.faces.command_line.words import in_words_of_commands
from ppl_models import DataError
from ppl_models.core.errors import DataWarning


@pytest.mark.parametrize(
    ("python", "command"),
    [
        ("f.csv: site 'x', axis 'feature': column 'a' is text", "f.csv: column 'a' is text"),
        ("site 'response', axis 'row': 5 rows", "response: 5 rows"),
        ("taken for data: header=True (--header yes) says otherwise", "taken for data: --header yes says otherwise"),
        ("id='a b' (--id) makes it the rows' names", "--id 'a b' makes it the rows' names"),
        ("what they are: --kind graph (kind='graph' in Python)", "what they are: --kind graph"),
        ("kind='counts' (--kind counts) says otherwise", "--kind counts says otherwise"),
        ("graph(source, weight=False) leaves\n  them out", "--threshold 0 leaves them out"),
        ("no feature has the answer 0", "no column has the answer 0"),
        ("num_features = 3", "num_features = 3"),
    ],
)
def test_messages_name_options_and_columns(python, command):
    assert in_words_of_commands(python) == command


def test_a_warning_is_said_once_a_command_and_errors_are_in_these_words(capsys):
    with pytest.raises(typer.Exit), _report_errors():
        for found in ("site 'x': one", "one", "site 'x': another"):
            warnings.warn(found, DataWarning, stacklevel=1)
        raise DataError("column 'a' holds text", axis="feature")
    assert capsys.readouterr().err == "warning: one\nwarning: another\nerror: column 'a' holds text\n"
