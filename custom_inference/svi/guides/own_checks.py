"""What is refused of a caller's own guide: sites that are not the model's, and sums that Pyro has wrong."""

from __future__ import annotations

from typing import Any

from custom_inference.core.programs.statements import is_scaled
from ppl_models import MethodError, Model


def check_names(model: Model, nodes: dict[str, Any], latents: dict[str, Any], finite: list[str]) -> None:
    """Refuse sites that are no latents of the model, and a guide that leaves some out that cannot be summed out."""
    name, listed = type(model).__name__, ", ".join(latents)
    for site in nodes:
        if site not in latents:
            raise MethodError(f"the guide samples '{site}', which is no latent site of {name}; these are: {listed}")
    missing = [site for site in latents if site not in nodes and site not in finite]
    if missing:
        summed = f" ({', '.join(finite)} may be left out, and is summed out then)" if finite else ""
        found = ", ".join(f"'{site}'" for site in missing)
        raise MethodError(f"the guide leaves out {found} of {name}; expected one that samples all latents{summed}")


def check_site(name: str, node: dict[str, Any], of_model: dict[str, Any]) -> None:
    """Refuse a site with a scale, or with values of another shape or outside the support of the model's."""
    if is_scaled(node):
        raise MethodError(
            f"site '{name}': the guide scales its statement (poutine.scale, or a plate that sees a part of its "
            "members), so that its density is not that of what it draws; leave the scale out"
        )
    value, expected = node["value"], of_model["value"]
    if value.shape != expected.shape:
        raise MethodError(
            f"site '{name}': the guide's values have shape {tuple(value.shape)}, the model's {tuple(expected.shape)}"
        )
    support = of_model["fn"].support
    if not bool(support.check(value).all()):
        raise MethodError(f"site '{name}': the guide draws values that the model's prior excludes; expected {support}")


def check_enumerated(nodes: dict[str, Any], beside: tuple[str, ...], inside: tuple[str, ...]) -> None:
    """Refuse to enumerate what Pyro would enumerate wrongly: latents inside a plate beside that of the rows, in the
    guide or, those named in ``beside``, in the program beside what the guide samples of the rows."""
    said = [name for name in inside if name in nodes and nodes[name]["infer"].get("enumerate")]
    for name in (*said, *(name for name in inside if name in beside)):
        how = "enumerates it" if name in said else "leaves it out, to be enumerated,"
        raise MethodError(
            f"site '{name}': the guide {how} in a plate beside that of the rows; Pyro then takes its members to be "
            "independent, and the ELBO is wrong where they meet in one likelihood: sample it in the guide without "
            'infer={"enumerate": ...}, or use guide="mean_field"'
        )
