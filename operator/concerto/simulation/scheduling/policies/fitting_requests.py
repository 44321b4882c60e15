"""kube-scheduler with requests that fit each kind of pods: what somebody would set who had measured them.

- By costs: a pod requests what pods of its kind take while they hold a place, times a factor. A sweep of factors finds
  the best static request for each kind.
- As the VerticalPodAutoscaler's recommender: the 90th percentile of usage and 15 % on top. Source:
  k8s.io/autoscaler/vertical-pod-autoscaler, ``recommender``. Usage is taken a minute at a time from a pod on an idle
  node, which a recommender would know after a few runs.
"""

from __future__ import annotations

import numpy as np

from concerto.simulation.scheduling.node_model import NodeModelSettings, PodLoad
from concerto.simulation.scheduling.policies.kube_scheduler import NONZERO_MEMORY, NONZERO_MILLICORES, KubeScheduler
from concerto.simulation.scheduling.workloads import JobSpec

_VPA_PERCENTILE, _VPA_MARGIN, _VPA_SAMPLE_SECONDS = 0.9, 1.15, 60.0


def natural_share(job: JobSpec, plant: NodeModelSettings) -> float:
    """Cores that a pod takes on an idle node, from its binding until its end is shown, its start and end included."""
    load = job.load
    if job.endless:
        return load.natural_share
    return (load.core_seconds + plant.runtime_core_seconds) / load.held_seconds(plant.runtime_seconds)


def vpa_cores(load: PodLoad) -> float:
    """The recommender's target: of usage a minute at a time, in cores."""
    life = load.life_seconds()
    if load.bursts != 1 or life <= _VPA_SAMPLE_SECONDS:
        return _VPA_MARGIN * load.core_seconds / life
    ends = np.linspace(_VPA_SAMPLE_SECONDS, life, 200)
    busy = np.minimum(np.maximum(ends - load.wait_seconds, 0.0), _VPA_SAMPLE_SECONDS)
    return _VPA_MARGIN * float(np.quantile(busy / _VPA_SAMPLE_SECONDS, _VPA_PERCENTILE)) * load.peak


class FittingRequests(KubeScheduler):
    """kube-scheduler whose pods request what their kind takes.

    Args:
        factor: times the natural share; None: what the VerticalPodAutoscaler would recommend.
    """

    def __init__(self, factor: float | None) -> None:
        super().__init__()
        self._factor = factor

    def requests(self, job: object) -> tuple[np.ndarray, np.ndarray]:
        """See KubeScheduler."""
        assert isinstance(job, JobSpec)
        cores = self._cores(job)
        memory = job.load.memory_bytes * (1.0 if self._factor is not None else _VPA_MARGIN)
        request = np.array([1000.0 * cores, memory])
        return request, np.array([request[0] or NONZERO_MILLICORES, memory or NONZERO_MEMORY])

    def _cores(self, job: JobSpec) -> float:
        if self._factor is None:
            return vpa_cores(job.load)
        return self._factor * natural_share(job, self.world.setup.plant)
