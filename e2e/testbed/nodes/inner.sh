#!/bin/bash
# The inside of a real node: first process of its mount, network, UTS, IPC, PID and cgroup namespaces. Settings come
# from the file named by $1 (see config.py). Ends, and so takes the whole node with it, when containerd or kubelet ends.
set -euo pipefail
. "$1"

mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs tmpfs /sys/fs/cgroup
if [ "$CGROUP_V2_ONLY" = 1 ]; then
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
else
  while IFS='|' read -r name kind options; do
    mkdir "/sys/fs/cgroup/$name"
    if [ "$kind" = cgroup2 ]; then mount -t cgroup2 cgroup2 "/sys/fs/cgroup/$name"
    else mount -t cgroup -o "$options" cgroup "/sys/fs/cgroup/$name"; fi
  done <<<"$CGROUP_MOUNTS"
  # Where cpu and cpuacct share a hierarchy, programs look for each by its own name.
  for pair in /sys/fs/cgroup/*,*; do
    if [ -d "$pair" ]; then
      for name in $(basename "$pair" | tr , ' '); do ln -s "$(basename "$pair")" "/sys/fs/cgroup/$name"; done
    fi
  done
fi
mkdir -p "$STATE"/{varlib,varlog,containerd}
mount --bind "$STATE/varlib" /var/lib
# where kubeadm puts it, and agents look for it
mkdir -p /var/lib/kubelet && cp "$STATE/kubelet.yaml" /var/lib/kubelet/config.yaml
mount --bind "$STATE/varlog" /var/log
mount -t tmpfs tmpfs /run
# kubelet writes every online CPU into kubepods' cpuset, and counts them: it must not see more than the node has.
mount --bind "$STATE/online" /sys/devices/system/cpu/online
mount -o remount,bind,ro /sys/devices/system/cpu/online
# kubelet would set these for the whole machine.
for file in "$STATE"/sysctl/*; do mount --bind "$file" "/proc/sys/$(basename "$file" | tr . /)"; done
mount --make-rshared /

hostname "$NODE"
ip link set lo up
for _ in $(seq 2400); do ip link show eth0 >/dev/null 2>&1 && break; sleep .05; done
ip addr add "$ADDRESS/24" dev eth0
ip link set eth0 up
ip route add default via "$GATEWAY"
while read -r cidr via; do ip route add "$cidr" via "$via"; done <<<"$PEER_ROUTES"
# What kube-proxy would do for the one service that matters: `kubernetes` reaches the API server, so that in-cluster
# configuration works unchanged in pods.
for chain in PREROUTING OUTPUT; do
  iptables -t nat -A $chain -d "$SERVICE_ADDRESS/32" -p tcp --dport 443 -j DNAT --to-destination "$GATEWAY:$API_PORT"
done

# where the node has another containerd than the machine
PATH=$CONTAINERD_PROGRAMS${CONTAINERD_PROGRAMS:+:}$PATH
# It ends the node when it ends, unless it was to be started again
run_containerd() {
  while :; do
    containerd --config "$STATE/containerd.toml" || true
    rm "$STATE/again" 2>/dev/null || break
  done
}
run_containerd >>"$LOGS/containerd.log" 2>&1 </dev/null &
containerd=$!
for _ in $(seq 2400); do [ -S /run/containerd/containerd.sock ] && break; kill -0 $containerd; sleep .05; done
for image in $IMAGES; do ctr -n k8s.io images import "$image"; done
"$KUBELET" --config="$STATE/kubelet.yaml" --kubeconfig="$STATE/kubeconfig" --hostname-override="$NODE" \
  --node-ip="$ADDRESS" --root-dir=/var/lib/kubelet >"$LOGS/kubelet.log" 2>&1 </dev/null &
kubelet=$!
wait -n $containerd $kubelet || true
kill -0 $kubelet 2>/dev/null && echo "containerd ended: see $LOGS/containerd.log" || echo "kubelet ended: see $LOGS/kubelet.log"
exit 1
