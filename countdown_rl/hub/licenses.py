"""Licence of a release: a name of the Hub, given or that of the base model."""

from typing import Any

from countdown_rl.errors import HubError


def resolve(license: str | None, base_model: str | None, revision: str | None) -> dict[str, str]:
    """Return the licence for the metadata of a card: *license*, else that on the card of *base_model* on the Hub."""
    if license is not None:
        return {"license": license}
    if base_model is None:
        return {}
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        data: Any = HfApi().model_info(base_model, revision=revision, timeout=20).card_data or {}
    except RepositoryNotFoundError:
        return {}
    except Exception as error:  # an answer that makes no sense raises any
        raise HubError(f"the card of {base_model} cannot be read from the Hub; give --license.") from error
    return {key: data[key] for key in ("license", "license_name", "license_link") if data.get(key)}
