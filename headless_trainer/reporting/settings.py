"""Training arguments as a run saved them, read without the classes that made them and without running any of their code."""

import io
import pickle
import zipfile
from pathlib import Path


class _Inert:
    """Stands for every object in a pickle, so that reading settings runs no code of the file."""

    def __new__(cls, *args):
        made = super().__new__(cls)
        made.args = args  # of an enumeration's member, its value
        return made

    def __init__(self, *args):
        pass

    def __setstate__(self, state):
        self.state = state


class _InertUnpickler(pickle.Unpickler):
    def find_class(self, module, name):
        return _Inert

    def persistent_load(self, identifier):
        return None


def read_settings(path: Path) -> dict:
    """The plain values of saved training arguments: strings, numbers, booleans, and members of enumerations by value.

    Tokens are left out: nobody should find them in a report.

    Raises:
        ValueError: if the file does not hold training arguments.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            member = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            state = _InertUnpickler(io.BytesIO(archive.read(member))).load().state
    except (zipfile.BadZipFile, StopIteration, pickle.UnpicklingError, AttributeError, EOFError, TypeError) as error:
        raise ValueError(
            f"{str(path)!r} does not hold training arguments ({error}). Delete it to go without."
        ) from error
    values = {
        name: value.args[0] if isinstance(value, _Inert) and len(value.args) == 1 else value
        for name, value in state.items()
    }
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, str | int | float | None) and not name.endswith("token")
    }
