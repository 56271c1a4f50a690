# What tests/cli/test_slurm.py does with the nodes' networks, by its first word. B: the bridge, NET: 10.x.y, CPU: the
# directory of the CPU controller (version 1), AT: the test's own directory.
every() { for i in 1 2 3 4; do "$@"; done; }
node() {
  ip netns add $B-n$i
  ip link add ${B}n$i type veth peer name eth0 netns $B-n$i
  ip link set ${B}n$i master $B up
  ip -n $B-n$i addr add $NET.$i/24 dev eth0
  ip -n $B-n$i link set eth0 up
  mkdir $CPU/$B-n$i || true
}
without() { ip netns del $B-n$i; rmdir $CPU/$B-n$i; }
port() { ip netns exec $B-n$i tc qdisc "$@" dev eth0 root; }
# The network and not the CPUs that all share decides a speed; n2 has a quarter of it.
limited() {
  [ $i = 2 ] && rate=300mbit || rate=1200mbit
  ip netns exec $B-n$i tc qdisc add dev eth0 root tbf rate $rate burst 256kb latency 200ms
}
case $1 in
  make)
    ip link add $B type bridge
    ip addr add $NET.254/24 dev $B
    ip link set $B up
    every node
    ;;
  remove) set +e; every without; ip link del $B ;;
  slow) every limited ;;
  sound) every port del ;;
  slurmd) # $2 is the node's name: its own host name, hosts, memory for ranks and control group end with the process
    exec unshare --mount --uts --propagation private nsenter --net=/run/netns/$B-$2 sh -euc '
      hostname $1
      mount --bind $AT/hosts /etc/hosts
      mount -t tmpfs -o size=256m tmpfs /dev/shm
      ip link set lo up
      [ ! -d $CPU/$B-$1 ] || echo $$ > $CPU/$B-$1/tasks
      exec slurmd -D -N $1' - "$2"
    ;;
esac
