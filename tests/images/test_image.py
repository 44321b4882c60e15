"""What goes into the images, and what does not; building them is for `make image`."""

import io
import json
import tarfile
import zipfile

import pytest
from e2e.image import build, install, sbom
from e2e.image.wheels import EXTRAS, LOCK, closure, locked


def test_the_operator_has_what_the_agent_has_and_more():
    agent, operator = (closure(EXTRAS[target]) for target in ("agent", "operator"))
    assert agent < operator
    assert "numpy" in agent
    assert {"kopf", "uvloop"} <= operator - agent


@pytest.mark.parametrize("target", EXTRAS)
def test_what_an_image_does_not_need_at_run_time_is_not_in_it(target):
    assert not closure(EXTRAS[target]) & {"kubernetes", "matplotlib", "rich", "pytest", "pip", "setuptools", "scipy"}


@pytest.mark.parametrize("target", EXTRAS)
def test_every_wheel_of_an_image_is_pinned_with_its_hash(target):
    names = closure(EXTRAS[target])
    pins = locked(names, LOCK.read_text())
    heads = [line for line in pins.splitlines() if "==" in line and not line.startswith(" ")]
    assert {head.partition("==")[0] for head in heads} == names
    assert pins.count("--hash=sha256:") >= len(names)


def test_the_bill_of_materials_lists_each_wheel_of_the_image_with_the_hashes_of_the_lock(tmp_path):
    listed = {c["name"]: c for c in json.loads(sbom.write("operator", tmp_path).read_text())["components"]}
    assert listed.keys() == closure(EXTRAS["operator"])
    lock = LOCK.read_text()
    for name, component in listed.items():
        assert f"{name}=={component['version']} " in lock
        hashes = {h["content"] for ref in component["externalReferences"] for h in ref["hashes"]}
        assert hashes
        assert all(f"sha256:{each}" in lock for each in hashes)


def test_a_name_that_the_lock_does_not_pin_is_reported():
    with pytest.raises(KeyError, match="missing"):
        locked({"missing"}, "numpy==2.0 \\\n    --hash=sha256:00\n")


def test_a_wheel_leaves_its_tests_headers_and_types_outside(tmp_path):
    with zipfile.ZipFile(tmp_path / "thing-1.0-py3-none-any.whl", "w") as wheel:
        for name in (
            "thing/__init__.py", "thing/core.so", "thing/tests/test_core.py", "thing/include/thing.h", "thing/core.pyi",
            "thing/latest/__init__.py", "thing-1.0.data/scripts/thing", "thing-1.0.dist-info/METADATA",
        ):  # fmt: skip
            wheel.writestr(name, "")
    install.wheels(tmp_path, tmp_path / "out")
    files = {str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert files == {"thing/__init__.py", "thing/core.so", "thing/latest/__init__.py", "thing-1.0.dist-info/METADATA"}


def archive(path, name, layers):
    """A docker-archive with layers by name."""
    config = f"{name}.json"
    manifest = [{"Config": config, "RepoTags": [f"{name}:1"], "Layers": list(layers)}]
    with tarfile.open(path, "w") as tar:
        for entry, data in {**layers, config: b"{}", "manifest.json": json.dumps(manifest).encode()}.items():
            info = tarfile.TarInfo(entry)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def test_layers_that_both_images_have_are_in_the_archive_once(tmp_path):
    shared = {"base.tar": b"x" * 1000}
    parts = [
        archive(tmp_path / "a.tar", "a", {**shared, "a.layer": b"a" * 10}),
        archive(tmp_path / "b.tar", "b", {**shared, "b.layer": b"b" * 20}),
    ]
    build._merge(parts, tmp_path / "both.tar")
    found = build.examine(tmp_path / "both.tar")
    assert [(image.name, image.bytes) for image in found.images] == [("a:1", 1010), ("b:1", 1020)]
    assert found.bytes == 1030
    with tarfile.open(tmp_path / "both.tar") as both:
        assert len(both.getnames()) == len(set(both.getnames()))


def test_the_images_have_another_fingerprint_when_our_code_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "REPOSITORY", tmp_path)
    (tmp_path / "operator" / "concerto").mkdir(parents=True)
    (tmp_path / "operator" / "concerto" / "a.py").write_text("1")
    before = build.fingerprint()
    assert build.fingerprint() == before
    (tmp_path / "operator" / "concerto" / "a.py").write_text("2")
    assert build.fingerprint() != before
