"""Names of the folders in which scores are kept."""

from pathlib import Path

import pytest

pytest.importorskip("lm_eval")


from headless_trainer.scoring.score_store import folder_name


def test_names_of_models_stay_in_their_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert folder_name("runs/decoder-lm/") == folder_name("./runs/decoder-lm") == "runs__decoder-lm"
    assert len({*map(folder_name, ("m", "../m", "../../m", "/m", "x/m"))}) == 5
    for name in (".", "..", "/", "../..", "a/../.."):
        made = folder_name(name)
        assert made and Path(made).name == made and made != ".."
