"""What training with a model cut into shards needs beyond the arguments of its launch configuration."""

from transformers import PreTrainedModel


def keep_embedding_apart(fsdp_plugin, model: PreTrainedModel) -> None:
    """Let FSDP2 gather the input embedding by itself, as the loss asks for it outside the forward of the model.

    accelerate shards the input embedding on its own unless a layer around it is sharded first, and ``_no_split_modules`` of
    BERT and its kin names such a layer: its embedding would be gathered for the forward of that layer alone, and accelerate
    1.15 fails when it comes to the embedding.

    Args:
        fsdp_plugin: accelerate's plugin, whose ``transformer_cls_names_to_wrap`` is filled in.
        model: the model that is going to be sharded.
    """
    embedding = model.get_input_embeddings()
    around = {
        type(module).__name__
        for module in model.modules()
        if module is not embedding and any(inner is embedding for inner in module.modules())
    }
    names = fsdp_plugin.transformer_cls_names_to_wrap or model._no_split_modules or ()
    fsdp_plugin.transformer_cls_names_to_wrap = sorted(set(names) - around)


def saves_whole_weights(fsdp_plugin) -> bool:
    """Whether `Trainer.save_model` writes weights that ``from_pretrained`` reads, and not only shards."""
    return "FULL_STATE_DICT" in str(fsdp_plugin.state_dict_type)
