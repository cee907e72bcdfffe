"""Names of repositories on the Hub."""

from pathlib import Path

from huggingface_hub.utils import validate_repo_id


def repository_name(hub_model_id: str | None, output_dir: str) -> str:
    """The repository that a run pushes to: ``hub_model_id``, or the name of its folder in the user's own namespace.

    Raises:
        ValueError: if the Hub would not take the name.
    """
    name = hub_model_id or Path(output_dir).absolute().name
    try:
        validate_repo_id(name)
    except ValueError as error:
        source = (
            "hub_model_id is" if hub_model_id else f"hub_model_id is not given and output_dir {output_dir!r} ends in"
        )
        raise ValueError(
            f"{source} {name!r}, which is no repository name: give one such as me/my-model. {error}"
        ) from error
    return name
