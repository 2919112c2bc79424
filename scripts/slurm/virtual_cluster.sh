#!/usr/bin/env bash
# Runs a Slurm cluster on one machine, for tests of several machines.  Every node has a slurmd in its own network
# namespace behind one bridge, so that links can be cut and nodes killed.  One cluster per machine; needs root.
#
#   virtual_cluster.sh start DIR [NODES]      starts nodes v1, v2, ... (3); DIR keeps keys, states and logs
#   virtual_cluster.sh run DIR COMMAND...     runs srun, sbatch, sinfo, ... against it
#   virtual_cluster.sh on DIR NODE COMMAND... runs a command on a node, outside of any job
#   virtual_cluster.sh cut|heal DIR NODE      takes the node's link down, or up again
#   virtual_cluster.sh kill|revive DIR NODE   kills every process of the node, or starts its slurmd again
#   virtual_cluster.sh stop DIR               ends everything and keeps DIR
#
# Works with Slurm 22.05 of Debian 12, without systemd and cgroups.  Exits with 77 if the machine lacks something.
set -euo pipefail
usage() { sed -n '5,10s/^#   //p' "$0" >&2; exit 2; }
[ $# -ge 2 ] || usage
command=$1 dir=$2
shift 2
network=10.77.0
bridge=ashlar-bridge
export PATH=$PATH:/usr/sbin:/sbin

lacks() { echo "virtual_cluster: $1" >&2; exit 77; }
fail() { echo "virtual_cluster: $1" >&2; exit 1; }

check_machine() {
  [ "$(id -u)" -eq 0 ] || lacks "network namespaces need root"
  local program missing=
  for program in munged slurmctld slurmd srun ip nsenter unshare; do
    command -v "$program" >/dev/null || missing+=" $program"
  done
  [ -z "$missing" ] || lacks "missing:$missing (apt-get install slurmctld slurmd slurm-client munge iproute2)"
  ip netns add ashlar-probe 2>/dev/null || lacks "this machine refuses network namespaces"
  ip netns del ashlar-probe
  ! ip link show "$bridge" >/dev/null 2>&1 || fail "a cluster runs already on this machine; stop it first"
}

write_configuration() {
  local nodes=$1 i
  mkdir -p "$dir"/munge "$dir"/state "$dir"/cli "$dir"/log
  chmod 0700 "$dir/munge"
  (umask 0277; head -c 32 /dev/urandom >"$dir/munge/key")
  # PMIx keeps one directory a node, and takes that of another slurmd for a stale one of its own: each node mounts
  # nodes/NODE over it.
  echo "PMIxCliTmpDirBase=$dir/cli" >"$dir/mpi.conf"
  cat >"$dir/slurm.conf" <<END
ClusterName=ashlar
SlurmctldHost=ctl($network.1)
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmctldPidFile=$dir/state/slurmctld.pid
SlurmdPidFile=$dir/state/slurmd-%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
SlurmdParameters=config_overrides
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdTimeout=10
KillWait=5
UnkillableStepTimeout=300
MessageTimeout=10
JobRequeue=1
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
END
  for ((i = 1; i <= nodes; ++i)); do
    echo "NodeName=v$i NodeAddr=$network.$((10 + i)) CPUs=$(nproc) State=UNKNOWN" >>"$dir/slurm.conf"
  done
}

start_controller() {
  ip link add "$bridge" type bridge
  ip addr add "$network.1/24" dev "$bridge"
  ip link set "$bridge" up
  munged --key-file="$dir/munge/key" --socket="$dir/munge/socket" --pid-file="$dir/munge/pid" \
    --log-file="$dir/munge/log" --seed-file="$dir/munge/seed" --force 2>"$dir/log/munged"
  setsid unshare -u sh -c "hostname ctl; exec slurmctld -D -f '$dir/slurm.conf'" \
    </dev/null >"$dir/log/slurmctld" 2>&1 &
}

start_slurmd() {  # of a node that has its namespace
  local node=$1
  mkdir -p "$dir/spool-$node"
  setsid nsenter --net="/run/netns/$node" unshare -m -u sh -c \
    "hostname $node; mount --bind '$dir/nodes/$node' '$dir/cli'; exec slurmd -D -f '$dir/slurm.conf' -N $node" \
    </dev/null >>"$dir/log/slurmd-$node" 2>&1 &
}

start_node() {
  local i=$1 node=v$1
  mkdir -p "$dir/nodes/$node"  # by which `stop` knows the node
  ip netns add "$node"
  ip link del "link-$node" 2>/dev/null || true  # of a cluster that was stopped a moment ago
  ip link add "link-$node" type veth peer name eth0 netns "$node"
  ip link set "link-$node" master "$bridge" up
  nsenter --net="/run/netns/$node" sh -c \
    "ip addr add $network.$((10 + i))/24 dev eth0; ip link set eth0 up; ip link set lo up"
  start_slurmd "$node"
}

wait_for_nodes() {
  local nodes=$1 tries idle=0
  for ((tries = 0; tries < 100; ++tries)); do
    idle=$(SLURM_CONF=$dir/slurm.conf sinfo --noheader --Node --format='%T' 2>/dev/null | grep -cx idle || true)
    [ "$idle" -lt "$nodes" ] || return 0
    sleep 0.2
  done
  tail -n 5 "$dir"/log/* >&2
  fail "only $idle of $nodes nodes came up in 20 s"
}

kill_node() {  # and waits until its processes are gone
  local pids
  while pids=$(ip netns pids "$1") && [ -n "$pids" ]; do
    kill -9 $pids 2>/dev/null || true
    sleep 0.05
  done
}

kill_service() {  # PROGRAM FILE, which names its process; the number may be another's by now
  local pid
  [ -s "$2" ] || return 0
  pid=$(cat "$2")
  while { tr '\0' ' ' <"/proc/$pid/cmdline"; } 2>/dev/null | grep -q "$1.*$dir/"; do
    kill -9 "$pid"
    sleep 0.05
  done
  rm -f "$2"
}

stop() {
  local node
  for node in "$dir"/nodes/*; do
    node=${node##*/}
    [ -e "/run/netns/$node" ] || continue
    kill_node "$node"
    ip netns del "$node"
  done
  kill_service slurmctld "$dir/state/slurmctld.pid"
  kill_service munged "$dir/munge/pid"
  ! ip link show "$bridge" >/dev/null 2>&1 || ip link del "$bridge"
}

case $command in
  start)
    check_machine
    nodes=${1:-3}
    mkdir -p "$dir"
    dir=$(cd "$dir" && pwd)
    [ ! -e "$dir/slurm.conf" ] || fail "$dir holds a cluster already; take another directory"
    trap stop EXIT  # unless all of it comes up
    trap 'exit 130' INT TERM
    write_configuration "$nodes"
    start_controller
    for ((i = 1; i <= nodes; ++i)); do start_node "$i"; done
    wait_for_nodes "$nodes"
    SLURM_CONF=$dir/slurm.conf sinfo
    trap - EXIT
    exit 0 ;;
esac
[ -e "$dir/slurm.conf" ] || fail "$dir holds no cluster"
dir=$(cd "$dir" && pwd)
export SLURM_CONF=$dir/slurm.conf
case $command in
  run) [ $# -ge 1 ] || usage; exec "$@" ;;
  stop) stop; exit 0 ;;
esac
[ $# -ge 1 ] || usage
node=$1
shift
[ -e "/run/netns/$node" ] || fail "there is no node $node"
case $command in
  on) [ $# -ge 1 ] || usage; exec nsenter --net="/run/netns/$node" unshare -u sh -c 'hostname "$0"; exec "$@"' "$node" "$@" ;;
  cut) ip link set "link-$node" down ;;
  heal) ip link set "link-$node" up ;;
  kill) kill_node "$node" ;;
  revive) start_slurmd "$node" ;;
  *) usage ;;
esac
