"""How the recorder lists a large cluster: page by page, and of each pod's spec no more than the verdict needs."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]

_PAGE = 1000
_OF_CONTAINERS = ("name", "image", "restartPolicy", "restartPolicyRules")


def list_all(api: Any, version: str, resource: str) -> tuple[list[Object], str]:
    """All objects of a kind, and the resourceVersion of the list.

    Args:
        api: a pykube client.
        version: group and version.
        resource: the kind's plural.
    """
    items: list[Object] = []
    params: dict[str, Any] = {"limit": _PAGE}
    while True:
        response = api.get(version=version, url=resource, params=params)
        response.raise_for_status()
        page = response.json()
        items += [_judged(item) if resource == "pods" else item for item in page["items"]]
        token = page["metadata"].get("continue")
        if not token:
            return items, str(page["metadata"]["resourceVersion"])
        params["continue"] = token


def _judged(pod: Object) -> Object:
    """The pod without most of its spec, and without the fields that others than leaders manage."""
    metadata, spec = pod["metadata"], pod["spec"]
    entries = [e for e in metadata.get("managedFields", ()) if e.get("manager", "").startswith("concerto-leader-")]
    kept = {k: spec[k] for k in ("nodeName", "restartPolicy") if k in spec}
    for group in ("containers", "initContainers"):
        if group in spec:
            kept[group] = [{key: c[key] for key in _OF_CONTAINERS if key in c} for c in spec[group]]
    return {**pod, "metadata": {**metadata, "managedFields": entries}, "spec": kept}
