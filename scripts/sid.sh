#!/bin/bash
# sid.sh gives this machine an unmodified, recent program of Debian sid, in a
# root file system of its own below the openpcs cache.
#
#   sid.sh path aws       build it if it is not there, print the command's path
#   sid.sh remove aws     remove it
#
# The printed command is used like any other: it has the caller's environment
# (AWS_*, HOME), working folder and files. The programs are
#
#   aws           the AWS CLI, for tests and walkthroughs
#   moto_server   another server with some of the same API, which `make bench`
#                 measures beside openpcs
#   prometheus, promtool
#                 what reads the metrics of openpcs and Slurm in the tests
set -euo pipefail

say() { printf '==> %s\n' "$*" >&2; }
die() {
	printf 'sid.sh: %s\n' "$*" >&2
	exit 1
}

program=${2:-}
case $program in
aws) packages=awscli,ca-certificates,less name=awscli ;;
moto_server) packages=python3-moto,python3-flask,python3-flask-cors,ca-certificates name=moto ;;
prometheus | promtool) packages=prometheus,ca-certificates name=prometheus ;;
*) die "usage: sid.sh path|remove aws|moto_server|prometheus|promtool" ;;
esac

cache=${OPENPCS_CACHE:-/var/cache/openpcs}
dir=$cache/$name
root=$dir/root
wrapper=$dir/$program

# debian_mirror prints the URI this machine takes Debian from, if it does.
debian_mirror() {
	# shellcheck disable=SC2016 # the format is apt's, not the shell's
	apt-get indextargets --format '$(REPO_URI) $(COMPONENT)' \
		'Created-By: Packages' 'Origin: Debian' 'Label: Debian' |
		awk '$2 == "main" { print $1; exit }'
}

# bootstrap makes the root file system in a new folder.
bootstrap() {
	local target=$1
	shift
	local mirror
	mirror=$(debian_mirror)
	mmdebstrap --mode=root --variant=apt --format=directory \
		--dpkgopt=force-unsafe-io \
		--dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/doc/*' \
		--dpkgopt='path-include=/usr/share/doc/*/copyright' \
		--dpkgopt='path-exclude=/usr/share/locale/*' \
		--include="$packages" \
		"$@" sid "$target" ${mirror:+"$mirror"}
}

# build makes what is missing, or nothing.
build() {
	[[ $(id -u) -eq 0 ]] || die "needs root: run it with sudo"
	command -v mmdebstrap >/dev/null || die "needs mmdebstrap: run scripts/host.sh packages"
	mkdir -p "$dir"
	exec 9>"$dir/lock"
	flock 9
	[[ ! -x $root/usr/bin/$program ]] || return 0
	rm -rf --one-file-system "$dir"/new.*
	say "building a root file system with $program from Debian sid (once, about half a minute)"
	local new log
	new=$(mktemp -d "$dir/new.XXXXXX")
	log=$dir/build.log
	if ! bootstrap "$new/root" >"$log" 2>&1; then
		if ! grep -q 'Release file for .* is expired' "$log"; then
			tail -n 12 "$log" >&2
			die "building the one with $program failed (log: $log)"
		fi
		say "WARNING: the mirror's Release file of Debian sid is past its Valid-Until: the mirror is stale."
		say "Trying once more without that check; signatures are still verified."
		rm -rf --one-file-system "$new/root"
		if ! bootstrap "$new/root" --aptopt='Acquire::Check-Valid-Until "false"' >"$log" 2>&1; then
			tail -n 12 "$log" >&2
			die "building the one with $program failed (log: $log)"
		fi
	fi
	chmod 755 "$new/root"
	mv "$new/root" "$root"
	rmdir "$new"
}

# write_wrapper makes the command: in a mount namespace of its own, the
# caller's folders are laid into the root file system.
write_wrapper() {
	local new
	new=$(mktemp "$dir/$program.XXXXXX")
	{
		printf '#!/bin/bash\n# Written by openpcs (scripts/sid.sh).\nroot=%q program=%q\n' "$root" "$program"
		cat <<-'WRAPPER'
			# shellcheck disable=SC2016 # expanded by the inner shell
			exec unshare --mount --propagation private bash -c '
				root=$1 program=$2 here=$PWD
				shift 2
				for d in /*; do
					case $d in
					/bin | /boot | /etc | /lib* | /lost+found | /sbin | /usr | /var) continue ;;
					esac
					[[ -d $d && ! -L $d ]] || continue
					mkdir -p "$root$d"
					mount --rbind "$d" "$root$d"
				done
				case $here in
				/etc* | /usr* | /var*)
					[[ -d $root$here ]] || mkdir -p "$root$here"
					mount --rbind "$here" "$root$here"
					;;
				esac
				for f in /etc/resolv.conf /etc/hosts "${AWS_CA_BUNDLE:-}"; do
					[[ -e $f ]] || continue
					[[ -e $root$f ]] || { mkdir -p "$root${f%/*}" && : >"$root$f"; }
					mount --bind "$f" "$root$f"
				done
				unset PYTHONHOME PYTHONPATH LD_LIBRARY_PATH LD_PRELOAD
				export PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
				exec chroot "$root" /bin/sh -c "cd \"\$1\" 2>/dev/null || cd /; shift; exec \"\$@\"" sh "$here" "/usr/bin/$program" "$@"
			' sid "$root" "$program" "$@"
		WRAPPER
	} >"$new"
	chmod 755 "$new"
	mv "$new" "$wrapper"
}

case ${1:-} in
path)
	if [[ ! -x $root/usr/bin/$program ]]; then
		build
	fi
	write_wrapper
	printf '%s\n' "$wrapper"
	;;
remove)
	rm -rf --one-file-system "$dir"
	;;
*) die "usage: sid.sh path|remove aws|moto_server|prometheus|promtool" ;;
esac
