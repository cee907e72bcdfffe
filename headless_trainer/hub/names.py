"""Names of repositories on the Hub."""

from pathlib import Path

from huggingface_hub.utils import validate_repo_id


def repository_name(hub_model_id: str | None, output_dir: str) -> str:
    """Name the repository that a run pushes to: ``hub_model_id``, or that of its folder in the user's own namespace."""
    name = hub_model_id or Path(output_dir).absolute().name
    validate_repo_id(name)  # now: a push would find it out when the run has begun
    return name
