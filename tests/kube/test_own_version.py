from __future__ import annotations

from importlib.metadata import version

from concerto.kube.own_version import own_version


def test_it_is_what_pip_has_installed():
    assert own_version() == version("concerto-k8s")


def test_where_nothing_is_installed_it_is_not_known(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.path", [str(tmp_path), str(tmp_path / "missing"), str(tmp_path / "archive.zip")])
    assert own_version() is None
    (tmp_path / "concerto_k8s-1.2.3.dist-info").mkdir()
    assert own_version() == "1.2.3"
