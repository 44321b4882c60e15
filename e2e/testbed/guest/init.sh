#!/bin/busybox sh
# First process of the guest: loads the modules that the disk needs, and gives way to systemd on that disk.
/bin/busybox mkdir -p /dev /proc /disk
/bin/busybox mount -t devtmpfs devtmpfs /dev
/bin/busybox mount -t proc proc /proc
while read -r module; do
  /bin/busybox insmod "/modules/$module" || echo "guest: $module was not loaded"
done </modules/modules.list
/bin/busybox mount -t ext4 -o noatime /dev/vda /disk || echo "guest: no root file system"
/bin/busybox mount -t ext4 -o ro,noatime /dev/vdb /disk/payload || echo "guest: no payload"
# that of pods with the node's network is made of it
[ -e /disk/etc/hosts ] || echo "127.0.0.1 localhost guest" >/disk/etc/hosts
# systemd takes over a /run that is there
/bin/busybox mount -t tmpfs -o mode=755 tmpfs /disk/run
/bin/busybox mkdir -p /disk/run/systemd/system/multi-user.target.wants
/bin/busybox cp /units/* /disk/run/systemd/system
for unit in $(/bin/busybox grep -l WantedBy /units/*); do
  /bin/busybox ln -s "../${unit##*/}" "/disk/run/systemd/system/multi-user.target.wants/${unit##*/}"
done
/bin/busybox umount /proc
exec /bin/busybox switch_root /disk /lib/systemd/systemd
