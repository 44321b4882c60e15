"""What goes into the images, and what does not; building them is for `make image`."""

import io
import json
import tarfile
import zipfile

import pytest
from e2e.image import build, install, pin, reproducible, sbom
from e2e.image.wheels import EXTRAS, LOCK, REPOSITORY, closure, locked


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


def test_files_of_a_layer_have_the_time_zero(tmp_path, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr("sys.argv", ["install.py", "code", str(tmp_path / "out"), "operator/concerto/__init__.py"])
    install.main()
    files = [tmp_path / "out", *(tmp_path / "out").rglob("*")]
    assert any(path.suffix == ".pyc" for path in files)
    assert {path.stat().st_mtime for path in files} == {0.0}


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


DIGEST = "sha256:" + "0123456789abcdef" * 4


def test_the_dockerfile_has_one_base_and_names_it_once():
    text = pin.DOCKERFILE.read_text()
    name, digest = pin.base(text)
    assert name.partition("/")[0].count("."), "with its registry, so that no builder searches for it"
    assert digest is None or len(digest) == len(DIGEST)
    froms = [line.split()[1] for line in text.splitlines() if line.startswith("FROM ")]
    assert set(froms) == {"${BASE}", "runtime"}


@pytest.mark.parametrize("before", ["", f"@sha256:{'f' * 64}"])
def test_the_base_is_pinned_and_nothing_else_is_changed(before):
    text = f"# base\nARG BASE=registry.example/python{before}\nFROM ${{BASE}} AS build\n"
    after = f"# base\nARG BASE=registry.example/python@{DIGEST}\nFROM ${{BASE}} AS build\n"
    assert pin.pinned(text, DIGEST) == after
    assert pin.base(after) == ("registry.example/python", DIGEST)


@pytest.mark.parametrize("digest", ["", "latest", "sha256:0", "sha256:" + "0" * 63 + "g", DIGEST + "0"])
def test_what_is_no_digest_is_not_written(digest):
    with pytest.raises(ValueError, match="is not sha256"):
        pin.pinned("ARG BASE=registry.example/python\n", digest)


def test_a_digest_that_nobody_can_look_up_is_reported(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(pin.CannotPin, match="there is no skopeo; there is no docker"):
        pin.look_up("registry.example/python")


def test_two_builds_are_compared_by_configuration_and_layers(tmp_path):
    same = archive(tmp_path / "1.tar", "a", {"base.tar": b"x"}), archive(tmp_path / "2.tar", "a", {"base.tar": b"y"})
    assert reproducible.differences(*same) == [], "layers are named by their digests"
    other = archive(tmp_path / "3.tar", "a", {"other.tar": b"x"})
    assert reproducible.differences(same[0], other) == ["a:1: layer 1 differs"]
    more = archive(tmp_path / "4.tar", "a", {"base.tar": b"x", "more.tar": b""})
    assert reproducible.differences(same[0], more) == ["a:1 has 1 and 2 layers"]
    elsewhere = archive(tmp_path / "5.tar", "b", {"base.tar": b"x"})
    assert reproducible.differences(same[0], elsewhere) == ["a:1 is in one archive only", "b:1 is in one archive only"]
