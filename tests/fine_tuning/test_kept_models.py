"""The best fine-tuned model of a grid, which its later runs replace."""

from types import SimpleNamespace

from headless_trainer.fine_tuning.results import BEST
from headless_trainer.fine_tuning.runs import keep_model


def test_a_better_model_replaces_a_link_and_not_the_model_behind_it(tmp_path):
    elsewhere = tmp_path / "disk" / "model"
    elsewhere.mkdir(parents=True)
    (elsewhere / "model.safetensors").touch()
    task = tmp_path / "grid" / "rte"
    (task / "seed_1.best").mkdir(parents=True)
    (task / BEST).symlink_to(elsewhere)
    kept = keep_model(SimpleNamespace(path=task / "seed_1.json", seed=1), {"score": 0.5})
    assert kept == task / BEST and not kept.is_symlink()
    assert [path.name for path in kept.iterdir()] == ["seed.json"]
    assert (elsewhere / "model.safetensors").is_file()
