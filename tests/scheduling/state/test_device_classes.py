import pytest

from concerto.api.deviceclass import DeviceClass, trim_device_class
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.device_classes import DeviceClasses


def test_pods_request_a_class_by_its_name_or_by_its_resource():
    classes = DeviceClasses()
    assert classes.set(DeviceClass("fast", "example.com/gpu")) == Change.NODE
    assert classes.set(DeviceClass("plain", "")) == Change.NODE
    assert classes.offering("example.com/gpu") == "fast"
    assert classes.offering("deviceclass.resource.kubernetes.io/fast") == "fast"
    assert classes.offering("deviceclass.resource.kubernetes.io/plain") == "plain"
    assert not classes.offering("deviceclass.resource.kubernetes.io/other")
    assert not classes.offering("cpu")


def test_a_class_that_changes_or_goes_offers_nothing_any_more():
    classes = DeviceClasses()
    classes.set(DeviceClass("b", "example.com/gpu"))
    assert classes.set(DeviceClass("b", "example.com/gpu")) == Change.NOTHING
    classes.set(DeviceClass("a", "example.com/gpu"))
    assert classes.offering("example.com/gpu") == "a", "the first by name"
    assert classes.set(DeviceClass("a", "example.com/npu")) == Change.NODE
    assert (classes.offering("example.com/gpu"), classes.offering("example.com/npu")) == ("b", "a")
    assert classes.remove("b") == Change.NODE
    assert classes.remove("b") == Change.NOTHING
    assert not classes.offering("example.com/gpu")
    classes.remove("a")
    classes.set(DeviceClass("b", "deviceclass.resource.kubernetes.io/b"))
    assert classes.remove("b") == Change.NODE
    assert vars(classes) == vars(DeviceClasses())


def test_what_is_kept_of_a_class():
    raw = {
        "metadata": {"name": "fast", "uid": "u", "resourceVersion": "7", "managedFields": [{}]},
        "spec": {"extendedResourceName": "example.com/gpu", "selectors": [{"cel": {"expression": "true"}}]},
    }
    trimmed = trim_device_class(raw)
    assert trimmed["spec"] == {"extendedResourceName": "example.com/gpu"}
    assert "managedFields" not in trimmed["metadata"]
    assert DeviceClass.from_raw(trimmed) == DeviceClass.from_raw(raw) == DeviceClass("fast", "example.com/gpu")
    assert DeviceClass.from_raw({"metadata": {"name": "fast"}}) == DeviceClass("fast", "")
    with pytest.raises(TypeError, match="is not text"):
        DeviceClass.from_raw({"metadata": {"name": "fast"}, "spec": {"extendedResourceName": ["a"]}})
