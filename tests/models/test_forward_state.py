"""What a forward pass would change in a model beside its training."""

import pytest
import torch
from builders import VOCAB, Tokenizer, assert_same_weights, make_trainer, token_rows
from transformers import RwkvConfig, RwkvForCausalLM, RwkvModel

from headless_trainer.models.forward_state import undivided_weights
from headless_trainer.models.trunk import check_direction


def rwkv(kind=RwkvModel):
    """Of four layers, of which transformers divides the last two by 2 in evaluation."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "attention_hidden_size": 16, "intermediate_size": 16}
    config = RwkvConfig(
        vocab_size=VOCAB, num_hidden_layers=4, rescale_every=2, context_length=32, **sizes
    )
    return kind(config)


def copied(model) -> dict:
    return {name: weight.clone() for name, weight in model.state_dict().items()}


def assert_unchanged(model, before: dict) -> None:
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name]), name
    assert model.config.rescale_every == 2


def test_a_check_leaves_the_weights_of_an_rwkv_as_they_are():
    model = rwkv()
    before = copied(model)
    check_direction(model, "clm")
    assert_unchanged(model, before)


def test_the_outputs_of_an_rwkv_whose_weights_are_left_alone_are_the_same():
    model = rwkv().eval()
    ids = torch.arange(3, 11)[None]
    before = copied(model)
    with torch.no_grad(), undivided_weights(model):
        outputs = model(ids).last_hidden_state
    assert_unchanged(model, before)
    with torch.no_grad():
        divided = model(ids).last_hidden_state
    torch.testing.assert_close(outputs, divided, rtol=1e-3, atol=1e-4)


def test_weights_that_were_divided_elsewhere_are_multiplied_again():
    model = rwkv().eval()
    before = copied(model)
    with torch.no_grad():
        model(torch.arange(3, 11)[None])
    assert not torch.equal(
        model.blocks[3].attention.output.weight, before["blocks.3.attention.output.weight"]
    )
    with undivided_weights(model):
        assert_unchanged_while_inside = copied(model)
    assert_unchanged(model, before)
    assert torch.equal(
        assert_unchanged_while_inside["blocks.3.attention.output.weight"],
        before["blocks.3.attention.output.weight"],
    )


@pytest.mark.parametrize("objective", ["headless", "vanilla"])
def test_an_evaluation_before_a_checkpoint_changes_nothing_for_an_rwkv(tmp_path, objective):
    def run(folder, **settings):
        model = rwkv(RwkvModel if objective == "headless" else RwkvForCausalLM)
        rows = token_rows(Tokenizer(), 8)
        defaults = {"objective": objective, "task": "clm", "max_steps": 2, "save_steps": 1}
        defaults |= {"per_device_train_batch_size": 2}
        return make_trainer(
            folder,
            model,
            rows,
            defaults | settings,
            eval_dataset=rows,
            processing_class=Tokenizer(),
        )

    plain = run(tmp_path / "plain")
    plain.train()
    evaluated = run(tmp_path / "evaluated", eval_strategy="steps", eval_steps=1)
    evaluated.train()
    assert_same_weights(plain, evaluated)
    resumed = run(tmp_path / "resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "evaluated" / "checkpoint-1"))
    assert_same_weights(plain, resumed)
