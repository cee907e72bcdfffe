"""What the scripts save, as other programs read it: each test is a client's own
documented way in.
"""

import numpy as np
import pytest
import torch
from builders import DECODER, ENCODER
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    pipeline,
)

from headless_trainer.cli.make_lm_head import main as make_head
from headless_trainer.cli.pretrain import main as pretrain

pytestmark = pytest.mark.slow

QUICK = "--train_tokenizer --vocab_size 320 --max_seq_length 16 --max_steps 30 --learning_rate 1e-2 --disable_tqdm true".split()
QUICK += "--per_device_train_batch_size 8 --use_cpu --save_strategy no --preprocessing_num_workers 1".split()
SENTENCES = ["the miller crossed the river.", "a grey heron watched the winter sky."]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory, text_lines):
    """A headless encoder and decoder, and the language model that the free head makes of each."""
    root = tmp_path_factory.mktemp("clients")
    (root / "lines.txt").write_text("\n".join(text_lines) + "\n", encoding="utf-8")
    for name, flags in (("encoder", ENCODER), ("decoder", DECODER)):
        folder = str(root / name)
        pretrain([*QUICK, *flags, "--train_file", str(root / "lines.txt"), "--output_dir", folder])
        make_head(["--model_name_or_path", folder, "--output_dir", str(root / f"{name}_lm")])
    return root


@pytest.fixture(scope="module", params=["encoder", "decoder"])
def trunk(request, checkpoints):
    return checkpoints / request.param


def hidden_states(folder, sentence) -> np.ndarray:
    """``(T, D)``, from the classes alone."""
    tokenizer, model = (
        AutoTokenizer.from_pretrained(folder),
        AutoModel.from_pretrained(folder).eval(),
    )
    with torch.no_grad():
        return model(**tokenizer(sentence, return_tensors="pt")).last_hidden_state[0].numpy()


def test_auto_model_finds_every_weight_of_the_trunk(trunk):
    model, report = AutoModel.from_pretrained(trunk, output_loading_info=True)
    # Which no objective trains.
    pooler = {name for name in report["missing_keys"] if name.startswith("pooler.")}
    assert not (
        set(report["missing_keys"]) - pooler
        or report["unexpected_keys"]
        or report["mismatched_keys"]
    )
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_feature_extraction_pipeline(trunk):
    features = pipeline("feature-extraction", model=str(trunk), device="cpu")(
        SENTENCES[0], return_tensors=True
    )
    np.testing.assert_allclose(features[0].numpy(), hidden_states(trunk, SENTENCES[0]), atol=1e-5)


def test_fill_mask_pipeline(checkpoints):
    fill = pipeline("fill-mask", model=str(checkpoints / "encoder_lm"), device="cpu")
    answers = fill(f"the miller crossed the {fill.tokenizer.mask_token} .")
    scores = [answer["score"] for answer in answers]
    assert len(answers) == 5 and scores == sorted(scores, reverse=True) and 0 < sum(scores) <= 1


def test_text_generation_pipeline(checkpoints):
    generate = pipeline("text-generation", model=str(checkpoints / "decoder_lm"), device="cpu")
    (answer,) = generate("the miller", max_new_tokens=8, do_sample=False)
    assert answer["generated_text"].startswith("the miller") and len(
        answer["generated_text"]
    ) > len("the miller")


def test_sentence_transformer_with_mean_pooling(checkpoints):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = sentence_transformers.SentenceTransformer(str(checkpoints / "encoder"), device="cpu")
    # Of different lengths.
    for sentence, vector in zip(SENTENCES, model.encode(SENTENCES), strict=True):
        # Without a configuration of its own it takes the mean over tokens.
        np.testing.assert_allclose(
            vector, hidden_states(checkpoints / "encoder", sentence).mean(axis=0), atol=1e-5
        )


def train_adapter(model, inputs, steps: int = 40) -> list[float]:
    optimizer = torch.optim.AdamW(
        [weight for weight in model.parameters() if weight.requires_grad], lr=3e-2
    )
    losses = []
    for _ in range(steps):
        loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_lora_adapter_on_the_trunk(checkpoints, tmp_path, kind):
    """A classifier on the headless trunk, and a language model on the free head: trained, saved,
    read again, merged.
    """
    peft = pytest.importorskip("peft")
    folder = checkpoints / ("encoder" if kind == "encoder" else "decoder_lm")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = dict(
        tokenizer(
            SENTENCES, return_tensors="pt", padding=kind == "encoder", truncation=True, max_length=8
        )
    )
    if kind == "encoder":
        auto, task, modules = AutoModelForSequenceClassification, "SEQ_CLS", ["query", "value"]
        inputs["labels"] = torch.tensor([0, 1])
    else:
        auto, task, modules = AutoModelForCausalLM, "CAUSAL_LM", ["c_attn", "c_fc"]
        inputs["labels"] = inputs["input_ids"]
    torch.manual_seed(0)
    base = auto.from_pretrained(folder)
    embedding = base.get_input_embeddings().weight.clone()
    config = peft.LoraConfig(
        task_type=task, r=4, target_modules=modules, fan_in_fan_out=kind == "decoder"
    )
    model = peft.get_peft_model(base, config)
    losses = train_adapter(model, inputs)
    assert losses[-1] < 0.9 * losses[0]
    # The trunk stays as it was pretrained.
    assert torch.equal(model.get_input_embeddings().weight, embedding)
    model.eval().save_pretrained(tmp_path)
    torch.manual_seed(0)
    again = peft.PeftModel.from_pretrained(auto.from_pretrained(folder), tmp_path).eval()
    with torch.no_grad():
        want = model(**inputs).logits
        torch.testing.assert_close(again(**inputs).logits, want)
        torch.testing.assert_close(
            again.merge_and_unload()(**inputs).logits, want, rtol=1e-4, atol=1e-4
        )
