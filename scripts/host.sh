#!/bin/bash
# host.sh prepares a machine for openpcs: packages, and a running Incus daemon.
#
#   host.sh packages      install what is missing
#   host.sh incus-up      make sure incusd runs, print the path of its socket
#   host.sh incus-down    stop it and remove everything openpcs made in it
#   host.sh incus-status  say whether it runs (exit code 0 or 1)
#
# All of them can be run again at any time. Where systemd is pid 1 the Incus
# package's own unit is used and only the Incus project "openpcs" is ours.
# Elsewhere an incusd of our own runs below OPENPCS_INCUS_DIR, in a mount
# namespace that is pinned to a file: it outlives a killed daemon with the
# storage pools mounted in it, and the next daemon enters it again.
set -euo pipefail

root_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
incus_dir=${OPENPCS_INCUS_DIR:-/var/lib/openpcs/incus}
system_dir=/var/lib/incus
project=openpcs
# The prefix of every bridge and storage pool that openpcs makes in Incus, and
# that of the bridges of its tests.
prefix=openpcs
test_prefix=opcst

say() { printf '==> %s\n' "$*" >&2; }
die() {
	printf 'host.sh: %s\n' "$*" >&2
	exit 1
}

need_root() { [[ $(id -u) -eq 0 ]] || die "needs root: run it with sudo"; }
has_systemd() { [[ -d /run/systemd/system ]]; }

# --- packages ---------------------------------------------------------------

# os_field prints one field of os-release.
os_field() { (
	# shellcheck disable=SC1091
	. /etc/os-release
	eval "printf '%s' \"\${$1:-}\""
); }

# missing_packages prints those of its arguments that are not installed.
missing_packages() {
	local have
	# shellcheck disable=SC2016 # the format is dpkg-query's, not the shell's
	have=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null || true)
	local p
	for p in "$@"; do
		grep -qx "installed $p" <<<"$have" || printf '%s\n' "$p"
	done
}

# debian_mirror prints the URI this machine takes Debian from.
debian_mirror() {
	# shellcheck disable=SC2016 # the format is apt's, not the shell's
	apt-get indextargets --format '$(REPO_URI) $(COMPONENT)' \
		'Created-By: Packages' 'Origin: Debian' "Codename: $1" |
		awk '$2 == "main" { print $1; exit }'
}

has_candidate() {
	# No pipe into grep -q: it leaves early, and pipefail takes that for a no.
	local policy
	policy=$(apt-cache policy "$1" 2>/dev/null) || return 1
	[[ $policy =~ Candidate:\ [^\(] ]]
}

# enable_backports adds <codename>-backports from the machine's own mirror.
enable_backports() {
	local codename=$1 mirror
	local list=/etc/apt/sources.list.d/openpcs-backports.sources
	mirror=$(debian_mirror "$codename")
	[[ -n $mirror ]] || die "finding the Debian mirror failed: no source of $codename in apt's configuration"
	say "adding $codename-backports from the configured Debian mirror"
	cat >"$list" <<-SOURCES
		# Written by openpcs (scripts/host.sh): Incus for this release is in backports.
		Types: deb
		URIs: $mirror
		Suites: $codename-backports
		Components: main
		Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
	SOURCES
}

# go_is_usable tells whether the go command can build this module. From 1.21
# on it fetches a newer toolchain by itself (GOTOOLCHAIN=auto).
go_is_usable() {
	local version
	command -v go >/dev/null || return 1
	version=$(go env GOVERSION 2>/dev/null) || return 1
	version=${version#go}
	[[ $(printf '%s\n' 1.21 "${version%%[-a-z]*}" | sort -V | head -n1) == 1.21 ]]
}

packages() {
	local want=(
		incus-base incus-client mmdebstrap btrfs-progs squashfs-tools
		dnsmasq-base attr debian-archive-keyring iproute2 nftables
		ca-certificates curl gcc libc6-dev make git shellcheck
		util-linux mount python3 openssh-client
	)
	local missing=() codename id
	mapfile -t missing < <(missing_packages "${want[@]}")
	go_is_usable || missing+=(golang-go)
	if [[ ${#missing[@]} -eq 0 ]]; then
		say "packages: all there"
		return
	fi
	need_root
	command -v apt-get >/dev/null || die "installing packages needs apt: install by hand: ${missing[*]}"
	say "packages: installing ${missing[*]}"
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq
	id=$(os_field ID)
	codename=$(os_field VERSION_CODENAME)
	local from=()
	if [[ " ${missing[*]} " == *" incus-base "* ]] && ! has_candidate incus-base; then
		[[ $id == debian ]] || die "installing Incus failed: $(os_field PRETTY_NAME) has no package incus-base"
		enable_backports "$codename"
		apt-get update -qq
	fi
	if [[ " ${missing[*]} " == *" golang-go "* && $id == debian ]]; then
		from=(-t "$codename-backports")
		[[ $(apt-cache policy) == *"n=$codename-backports"* ]] || from=()
	fi
	# The daemon is started by incus-up, not by the package: outside of systemd
	# it would run without the cgroups it needs.
	local policy=/usr/sbin/policy-rc.d made=0 ours='# openpcs: removed after the installation'
	if ! has_systemd && { [[ ! -e $policy ]] || grep -qF "$ours" "$policy"; }; then
		printf '#!/bin/sh\n%s\nexit 101\n' "$ours" >"$policy"
		chmod 755 "$policy"
		made=1
	fi
	local rc=0 log
	log=$(mktemp)
	dpkg --configure -a >"$log" 2>&1 || true # what a killed run left half done
	apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0 \
		${from[@]+"${from[@]}"} "${missing[@]}" >"$log" 2>&1 || rc=$?
	[[ $made -eq 0 ]] || rm -f "$policy"
	[[ $rc -eq 0 ]] || cat "$log" >&2
	rm -f "$log"
	[[ $rc -eq 0 ]] || die "installing packages failed: apt-get ended with $rc (its output is above)"
	go_is_usable || die "the Go of this release is too old: install Go 1.21 or newer (go.mod asks for $(awk '/^go /{print $2}' "$root_dir/go.mod"), which it then fetches by itself)"
	say "packages: done"
}

# --- incus ------------------------------------------------------------------

run_dir=$incus_dir.run # pid file, lock and the pinned mount namespace
log_file=$incus_dir/logs/incusd.log
namespace=$run_dir/mnt
incusd_path=/usr/libexec/incus:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

socket_path() {
	if has_systemd; then
		printf '%s/unix.socket\n' "$system_dir"
	else
		printf '%s/unix.socket\n' "$incus_dir"
	fi
}

answers() {
	[[ -S $(socket_path) ]] &&
		curl -fs -m 5 -o /dev/null --unix-socket "$(socket_path)" http://incus/1.0
}

# raise_limit sets a sysctl unless it already is as high.
raise_limit() {
	local file=/proc/sys/${1//.//}
	[[ -w $file && $(<"$file") -lt $2 ]] || return 0
	printf '%s\n' "$2" >"$file" 2>/dev/null || say "raising $1 to $2 failed: many nodes at once may not start"
}

# daemon_pids prints the process ids of the incusd of our folder.
daemon_pids() {
	local p
	for p in /proc/[0-9]*; do
		[[ $(readlink "$p/exe" 2>/dev/null) == */incusd* ]] || continue
		tr '\0' ' ' 2>/dev/null <"$p/cmdline" | grep -- ' --group' >/dev/null || continue
		tr '\0' '\n' 2>/dev/null <"$p/environ" | grep -xF "INCUS_DIR=$incus_dir" >/dev/null || continue
		printf '%s\n' "${p#/proc/}"
	done
}

# instance_pids prints the ids of the monitors of our running instances, and
# of their first processes, with which the whole instance dies.
instance_pids() {
	local p stat
	declare -A monitors=()
	for p in /proc/[0-9]*; do
		if tr '\0' ' ' 2>/dev/null <"$p/cmdline" | grep -F "[lxc monitor] $incus_dir/containers " >/dev/null; then
			monitors[${p#/proc/}]=1
		fi
	done
	[[ ${#monitors[@]} -gt 0 ]] || return 0
	for p in /proc/[0-9]*; do
		read -r stat 2>/dev/null <"$p/stat" || continue
		# shellcheck disable=SC2086 # the fields behind "(name)": state, parent
		set -- ${stat##*) }
		[[ -z ${monitors[$2]:-} ]] || printf '%s\n' "${p#/proc/}"
	done
	printf '%s\n' "${!monitors[@]}"
}

# namespace_pids prints the ids of all processes in our pinned namespace.
namespace_pids() {
	local want p
	[[ $(stat -f -c %T "$namespace" 2>/dev/null) == nsfs ]] || return 0
	want="mnt:[$(stat -L -c %i "$namespace")]"
	for p in /proc/[0-9]*; do
		[[ $(readlink "$p/ns/mnt" 2>/dev/null) != "$want" ]] || printf '%s\n' "${p#/proc/}"
	done
}

# kill_all kills the processes named on its standard input and waits for them.
kill_all() {
	local pids pid
	mapfile -t pids
	[[ ${#pids[@]} -gt 0 ]] || return 0
	kill -9 "${pids[@]}" 2>/dev/null || true
	for pid in "${pids[@]}"; do
		for _ in {1..100}; do
			# A zombie holds nothing any more.
			grep -qs '^State:.[^ZX]' "/proc/$pid/status" || break
			sleep 0.05
		done
	done
}

# in_namespace runs a command where the daemon's mounts are.
in_namespace() { nsenter --mount="$namespace" -- "$@"; }

has_namespace() {
	[[ $(stat -f -c %T "$namespace" 2>/dev/null) == nsfs ]] && in_namespace true 2>/dev/null
}

# make_namespace pins a private mount namespace with a cgroup2 tree in it.
make_namespace() {
	mkdir -p "$run_dir"
	mountpoint -q "$run_dir" || mount --bind "$run_dir" "$run_dir"
	mount --make-private "$run_dir"
	umount "$namespace" 2>/dev/null || true
	: >"$namespace"
	# shellcheck disable=SC2016 # expanded by the inner shell
	unshare --mount="$namespace" --propagation private bash -ec '
		if [[ $(stat -f -c %T /sys/fs/cgroup) != cgroup2fs ]]; then
			umount -l /sys/fs/cgroup
			mount -t cgroup2 cgroup2 /sys/fs/cgroup
		fi'
}

# drop_cgroups removes the folders of instances that are gone.
drop_cgroups() {
	# shellcheck disable=SC2016 # expanded by the inner shell
	in_namespace bash -c '
		for d in /sys/fs/cgroup/lxc.*; do
			grep -qsx "populated 0" "$d/cgroup.events" || continue
			find "$d" -depth -type d -exec rmdir {} + 2>/dev/null
		done' || true
}

drop_loops() {
	losetup -n -l -O NAME,BACK-FILE 2>/dev/null |
		awk -v dir="$incus_dir/disks/" 'index($2, dir) == 1 { print $1 }' |
		xargs -r -n1 losetup -d 2>/dev/null || true
}

# our_bridges prints the bridges of our daemon: those in its folder, and those
# with our prefix that nothing else uses.
our_bridges() {
	local net args
	{
		ls "$incus_dir/networks" 2>/dev/null || true
		for net in /sys/class/net/{"$prefix","$test_prefix"}*/bridge; do
			[[ -e $net ]] || continue
			net=$(basename "$(dirname "$net")")
			args=$(cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n' | grep -aF "/networks/$net/dnsmasq.leases" || true)
			[[ -n $args && $args != *"=$incus_dir/networks/"* ]] && continue
			[[ -z $(ls "/sys/class/net/$net/brif") ]] || continue
			printf '%s\n' "$net"
		done
	} | sort -u
}

# drop_bridges removes the named bridges, their dnsmasq and firewall chains.
drop_bridges() {
	local net chain
	for net in "$@"; do
		pids_with "/networks/$net/dnsmasq.leases" | kill_all
		[[ ! -e /sys/class/net/$net/bridge ]] || ip link delete dev "$net" || true
		nft list chains inet 2>/dev/null | awk '$1 == "chain" { print $2 }' | { grep -F ".$net" || true; } |
			while read -r chain; do
				[[ $chain == *".$net" ]] || continue
				nft flush chain inet incus "$chain" 2>/dev/null || true
				nft delete chain inet incus "$chain" 2>/dev/null || true
			done
	done
	# veth pairs of a half-made instance have both ends here.
	ip -o link show type veth 2>/dev/null | grep -oE '\bveth[0-9a-f]{8}@veth[0-9a-f]{8}' | cut -d@ -f1 |
		xargs -r -n1 ip link delete dev 2>/dev/null || true
	if nft list table inet incus 2>/dev/null | grep . >/dev/null && ! nft list table inet incus | grep chain >/dev/null; then
		nft delete table inet incus || true
	fi
}

# pids_with prints the processes of our folder that have a text in their
# command line.
pids_with() {
	local p
	for p in /proc/[0-9]*; do
		tr '\0' ' ' 2>/dev/null <"$p/cmdline" | grep -F -- "$1" | grep -F -- "$incus_dir/" >/dev/null || continue
		[[ ${p#/proc/} -eq $$ ]] || printf '%s\n' "${p#/proc/}"
	done
}

# keep is the keeper: what systemd does for a unit that is to be restarted. Its
# arguments are the folder for the process ids, the socket and the log. Incus
# 6.0 can end by a fault of its own under load; instances run on meanwhile.
# shellcheck disable=SC2016 # expanded by the inner shell
readonly keep='
	echo $$ >"$1/keeper"
	while :; do
		rm -f "$2"
		incusd --group root --logfile "$3" &
		echo $! >"$1/pid"
		wait $! && exit
		sleep 1
	done'

# end_keeper ends the keeper, and not what it keeps.
end_keeper() {
	local pid
	pid=$(cat "$run_dir/keeper" 2>/dev/null) || return 0
	! tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -F " keeper $run_dir " >/dev/null || kill_all <<<"$pid"
	rm -f "$run_dir/keeper"
}

show_log() { tail -n 15 "$log_file" >&2 2>/dev/null || true; }

wait_for_socket() {
	for _ in {1..300}; do
		! answers || return 0
		sleep 0.1
	done
	return 1
}

incus_up() {
	need_root
	raise_limit fs.inotify.max_user_instances 8192
	raise_limit kernel.keys.maxkeys 20000
	raise_limit kernel.keys.maxbytes 2000000
	if has_systemd; then
		answers || systemctl enable --now --quiet incus.socket incus.service
		wait_for_socket || die "starting Incus failed: see journalctl -u incus"
		socket_path
		return
	fi
	[[ -x /usr/libexec/incus/incusd ]] || die "starting Incus failed: it is not installed: run scripts/host.sh packages"
	mkdir -p "$run_dir"
	exec 9>"$run_dir.lock"
	flock -w 120 9 || die "starting Incus failed: another host.sh is at it (it holds $run_dir.lock)"
	if answers; then
		say "incusd runs already"
		socket_path
		return
	fi
	local stale
	stale=$(daemon_pids)
	end_keeper
	if [[ -n $stale ]]; then
		say "incusd (process $stale) does not answer: ending it"
		kill_all <<<"$stale"
	fi
	rm -f "$(socket_path)"
	if has_namespace; then
		say "taking over what an earlier incusd left running"
	else
		# Without their namespace the old mounts are out of reach.
		instance_pids | kill_all
		drop_loops
		make_namespace
		[[ -e $incus_dir/database ]] || mapfile -t left < <(our_bridges)
		[[ -z ${left[*]:-} ]] || {
			say "removing left-over bridges: ${left[*]}"
			drop_bridges "${left[@]}"
		}
	fi
	drop_cgroups
	mkdir -p "$incus_dir/logs"
	chmod 711 "$incus_dir"
	say "starting incusd in $incus_dir"
	ulimit -n 1048576 2>/dev/null || ulimit -n "$(ulimit -Hn)"
	# lxcfs does not run here, and its hook only sleeps at every stop.
	mkdir -p "$incus_dir/lxc-config/common.conf.d"
	env -i PATH="$incusd_path" HOME=/root LANG=C.UTF-8 INCUS_DIR="$incus_dir" \
		INCUS_LXC_TEMPLATE_CONFIG="$incus_dir/lxc-config" \
		setsid nsenter --mount="$namespace" -- \
		bash -c "$keep" keeper "$run_dir" "$(socket_path)" "$log_file" </dev/null >>"$incus_dir/logs/incusd.out" 2>&1 9>&- &
	if ! wait_for_socket; then
		end_keeper
		daemon_pids | kill_all
		show_log
		die "starting Incus failed: no answer on $(socket_path) (log: $log_file)"
	fi
	INCUS_DIR=$incus_dir /usr/libexec/incus/incusd waitready --timeout=60 >&2 ||
		die "starting Incus failed: it is not ready after a minute (log: $log_file)"
	say "incusd runs (process $(<"$run_dir/pid"), log $log_file)"
	socket_path
}

# system_down removes our project, networks and pools from the machine's own
# Incus, which stays.
system_down() {
	answers || return 0
	local name
	export INCUS_SOCKET
	INCUS_SOCKET=$(socket_path)
	if incus project show "$project" >/dev/null 2>&1; then
		say "removing the Incus project $project"
		incus project delete --force "$project" </dev/null
	fi
	for name in $(incus network list -f csv,noheader | cut -d, -f1 | grep "^$prefix" || true); do
		incus network delete "$name"
	done
	for name in $(incus storage list -f csv,noheader | cut -d, -f1 | grep "^$prefix" || true); do
		incus storage delete "$name"
	done
}

incus_down() {
	need_root
	if has_systemd; then
		system_down
		return
	fi
	[[ -e $incus_dir || -e $run_dir ]] || {
		say "incusd: nothing to remove"
		return
	}
	exec 9>"$run_dir.lock"
	flock -w 120 9 || die "stopping Incus failed: another host.sh is at it (it holds $run_dir.lock)"
	say "stopping incusd and its instances in $incus_dir"
	local bridges
	mapfile -t bridges < <(our_bridges)
	end_keeper
	daemon_pids | kill_all
	instance_pids | kill_all
	namespace_pids | kill_all
	drop_bridges ${bridges[@]+"${bridges[@]}"}
	if has_namespace; then
		drop_cgroups
		umount "$namespace"
	fi
	drop_loops
	rm -rf --one-file-system "$incus_dir"
	! mountpoint -q "$run_dir" || umount "$run_dir"
	rm -rf "$run_dir" "$run_dir.lock"
	rmdir --ignore-fail-on-non-empty "$(dirname "$incus_dir")" 2>/dev/null || true
	say "incusd: removed"
}

incus_status() {
	if answers; then
		say "incusd answers on $(socket_path)"
	else
		say "incusd does not answer on $(socket_path)"
		return 1
	fi
}

main() {
	case ${1:-} in
	packages) packages ;;
	incus-up) incus_up ;;
	incus-down) incus_down ;;
	incus-status) incus_status ;;
	*) die "usage: host.sh packages|incus-up|incus-down|incus-status" ;;
	esac
}

main "$@"
