"""benchmarks/step.py: the models and methods of the project's figures, timed by compare-steps."""

import argparse

import pytest
import step

from headless_trainer.command_line import parse_args
from headless_trainer.models.loading import load_config
from headless_trainer.timing.step_arguments import ARGUMENT_CLASSES


def arguments(**changes) -> argparse.Namespace:
    defaults = {
        "model": "tiny-encoder",
        "vocab_size": 400,
        "length": 16,
        "repeats": 3,
        "pool_size": [],
        "methods": ["trunk only", "our vanilla"],
        "bf16": False,
    }
    return argparse.Namespace(**defaults | changes)


@pytest.mark.parametrize("model", step.MODELS)
def test_each_model_has_a_configuration_of_its_sizes(model):
    flags = step.flags_of(arguments(model=model), batch_size=4)
    model_args, data_args, args = parse_args(ARGUMENT_CLASSES, flags)
    assert args.per_device_train_batch_size == 4
    assert data_args.max_seq_length == 16
    _, model_type, settings = step.MODELS[model]
    config = load_config(model_args)
    assert config.model_type == model_type
    assert {name: getattr(config, name) for name in settings} == settings


@pytest.mark.slow
def test_a_batch_is_timed_with_each_method_and_pool(capsys):
    results = step.measure_batch(arguments(pool_size=[8]), batch_size=2)
    assert list(results) == ["trunk only", "our vanilla", "headless, pools of 8"]
    assert results["trunk only"]["ratio"] == 1.0
    for of_method in results.values():
        assert len(of_method["seconds"]) == 3
        assert of_method["mib"] > 100
    assert "| our vanilla |" in capsys.readouterr().out
