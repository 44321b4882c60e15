"""What the pinning component adds to agents: root without capabilities, the files it writes, and no further rights."""

from __future__ import annotations

import re
from argparse import ArgumentParser
from pathlib import Path

import pytest
import yaml

from concerto_agent.main import add_arguments, run

REPOSITORY = Path(__file__).resolve().parents[2]
COMPONENT = REPOSITORY / "manifests" / "components" / "pinning"
BASE = COMPONENT.parents[1] / "base"


def patches() -> list[object]:
    (kustomization,) = yaml.safe_load_all((COMPONENT / "kustomization.yaml").read_text())
    return [yaml.safe_load(p["patch"]) for p in kustomization["patches"] if p["target"]["name"] == "concerto-agent"]


def test_the_agent_may_do_what_it_does_and_nothing_else():
    rights = {
        (resource, tuple(rule.get("resourceNames", ())), verb)
        for obj in yaml.safe_load_all((COMPONENT / "rbac.yaml").read_text())
        for rule in obj.get("rules", ())
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert rights == {
        ("nodes/configz", (), "get"),
        ("podcpubindings", (), "list"),
        ("podcpubindings", (), "watch"),
        ("podcpubindings/status", (), "get"),
        ("podcpubindings/status", (), "patch"),
        ("daemonsets", ("concerto-agent",), "get"),
    }


def test_agents_are_held_to_the_bindings_of_their_node():
    policy = next(iter(yaml.safe_load_all((BASE / "policy-agent.yaml").read_text())))
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert {"podcpubindings", "podcpubindings/status"} <= set(rule["resources"])


def test_the_patched_agent_is_root_without_capabilities_and_writes_cgroups_only():
    merge = next(p for p in patches() if isinstance(p, dict))
    pod = merge["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsNonRoot"]) == (0, False)
    assert "securityContext" not in container, "capabilities stay dropped, the root file system read only"
    base = yaml.safe_load((BASE / "agent.yaml").read_text())["spec"]["template"]["spec"]
    paths = {v["name"]: v["hostPath"]["path"] for v in [*base["volumes"], *pod["volumes"]] if "hostPath" in v}
    writable = {paths[m["name"]] for m in container["volumeMounts"] if not m.get("readOnly")}
    assert writable == {"/sys/fs/cgroup"}


def test_the_flags_it_adds_are_the_agents_and_name_what_is_mounted():
    merge = next(p for p in patches() if isinstance(p, dict))
    added = [operation["value"] for p in patches() if isinstance(p, list) for operation in p]
    parser = ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(["--node-name", "n", *added])
    assert args.pinning
    assert args.repair_period == 15
    assert args.daemon_set == ("concerto-system", "concerto-agent")
    mounts = [m["mountPath"] for m in merge["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]]
    assert str(args.kubelet_state.parent) in mounts
    assert str(args.kubelet_config.parent) in mounts
    assert str(args.nri_socket.parent) in mounts
    assert str(args.kubelet_certificate.parent) in mounts


MADE_BY_VOLUMES = {"checkpoints": "checkpoints", "image_manager": "image-manager", "pki": "pki", "pods-api": "pods-api"}
"""Names of volumes, by folder."""
FOLDERS_OF_KUBELET = {"device-plugins", "plugins", "plugins_registry", "pod-resources", "pods", *MADE_BY_VOLUMES}
"""In /var/lib/kubelet, on every node: ``setupDataDirs`` and the device manager of kubelet make the others. Kubelet
makes those of volumes where features are enabled: ContainerCheckpoint, KubeletEnsureSecretPulledImages, PodsAPI."""


def test_the_agent_sees_kubelets_files_and_none_of_its_folders():
    merge = next(p for p in patches() if isinstance(p, dict))
    pod = merge["spec"]["template"]["spec"]
    empty = {v["name"] for v in pod["volumes"] if "emptyDir" in v}
    (container,) = pod["containers"]
    below = {m["mountPath"]: m["name"] for m in container["volumeMounts"] if "/host/kubelet/" in m["mountPath"]}
    assert set(below) == {f"/host/kubelet/{folder}" for folder in FOLDERS_OF_KUBELET}
    assert set(below.values()) <= empty
    for folder, volume in MADE_BY_VOLUMES.items():
        (path,) = [v["hostPath"] for v in pod["volumes"] if v["name"] == volume]
        assert path == {"path": f"/var/lib/kubelet/{folder}", "type": "DirectoryOrCreate"}, "else nothing to mount over"
        assert volume not in {m["name"] for m in container["volumeMounts"]}


def test_the_page_on_security_names_the_host_paths_that_the_agent_sees():
    merge = next(p for p in patches() if isinstance(p, dict))
    base = yaml.safe_load((BASE / "agent.yaml").read_text())
    volumes = [v for made in (merge, base) for v in made["spec"]["template"]["spec"]["volumes"]]
    text = (REPOSITORY / "docs" / "security.md").read_text().partition("## Host paths")[2].partition("\n## ")[0]
    named = set(re.findall(r"^\| `(/[^`]*)`", text, flags=re.MULTILINE))
    assert {v["hostPath"]["path"] for v in volumes if "hostPath" in v} == named


def test_the_init_container_copies_the_certificate_that_the_agent_reads(tmp_path):
    merge = next(p for p in patches() if isinstance(p, dict))
    pod = merge["spec"]["template"]["spec"]
    (init,) = pod["initContainers"]
    base = yaml.safe_load((BASE / "agent.yaml").read_text())["spec"]["template"]["spec"]["containers"][0]
    assert init["securityContext"] == base["securityContext"]
    parser = ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(init["args"][1:])
    added = [operation["value"] for p in patches() if isinstance(p, list) for operation in p]
    agent = parser.parse_args(["--node-name", "n", *added])
    mounts = {m["mountPath"]: m["name"] for m in init["volumeMounts"]}
    assert mounts == {
        str(args.kubelet_certificate.parent): "pki",
        "/host/checkpoints": "checkpoints",
        "/host/image_manager": "image-manager",
        "/host/pods-api": "pods-api",
        str(args.copy_kubelet_certificate.parent): "kubelet-certificate",
    }
    assert args.copy_kubelet_certificate == agent.kubelet_certificate


@pytest.mark.parametrize("there", [True, False])
def test_a_certificate_is_copied_if_there_is_one(tmp_path, there):
    source, target = tmp_path / "kubelet.crt", tmp_path / "copy"
    if there:
        source.write_text("certificate")
    parser = ArgumentParser()
    add_arguments(parser)
    command = ["--node-name=n", f"--kubelet-certificate={source}", f"--copy-kubelet-certificate={target}"]
    assert run(parser.parse_args(command)) == 0
    assert target.exists() == there


def test_a_certificate_that_can_not_be_copied_is_an_error(tmp_path, capsys):
    (tmp_path / "kubelet.crt").mkdir()
    parser = ArgumentParser()
    add_arguments(parser)
    command = [
        "--node-name=n",
        f"--kubelet-certificate={tmp_path}/kubelet.crt",
        f"--copy-kubelet-certificate={tmp_path}/c",
    ]
    assert run(parser.parse_args(command)) == 1
    assert "kubelet.crt" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "often"])
def test_a_repair_period_that_is_none_is_refused(text, capsys):
    parser = ArgumentParser()
    add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--node-name", "n", "--repair-period", text])
    assert "is not a number from 1 to 3600" in capsys.readouterr().err
