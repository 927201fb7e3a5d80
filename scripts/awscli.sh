#!/bin/bash
# awscli.sh gives this machine an unmodified, recent AWS CLI: that of Debian
# sid, in a root file system of its own below the openpcs cache.
#
#   awscli.sh path      build it if it is not there, print the path of `aws`
#   awscli.sh remove    remove it
#
# The printed command is used like any `aws`: it has the caller's environment
# (AWS_*, HOME), working folder and files.
set -euo pipefail

cache=${OPENPCS_CACHE:-/var/cache/openpcs}
dir=$cache/awscli
root=$dir/root
wrapper=$dir/aws

say() { printf '==> %s\n' "$*" >&2; }
die() {
	printf 'awscli.sh: %s\n' "$*" >&2
	exit 1
}

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
		--include=awscli,ca-certificates,less \
		"$@" sid "$target" ${mirror:+"$mirror"}
}

# build makes what is missing, or nothing.
build() {
	[[ $(id -u) -eq 0 ]] || die "needs root: run it with sudo"
	command -v mmdebstrap >/dev/null || die "needs mmdebstrap: run scripts/host.sh packages"
	mkdir -p "$dir"
	exec 9>"$dir/lock"
	flock 9
	[[ ! -x $root/usr/bin/aws ]] || return 0
	rm -rf --one-file-system "$dir"/new.*
	say "building the AWS CLI's root file system from Debian sid (once, about half a minute)"
	local new log
	new=$(mktemp -d "$dir/new.XXXXXX")
	log=$dir/build.log
	if ! bootstrap "$new/root" >"$log" 2>&1; then
		if ! grep -q 'Release file for .* is expired' "$log"; then
			tail -n 12 "$log" >&2
			die "building the AWS CLI failed (log: $log)"
		fi
		say "WARNING: the mirror's Release file of Debian sid is past its Valid-Until: the mirror is stale."
		say "Trying once more without that check; signatures are still verified."
		rm -rf --one-file-system "$new/root"
		if ! bootstrap "$new/root" --aptopt='Acquire::Check-Valid-Until "false"' >"$log" 2>&1; then
			tail -n 12 "$log" >&2
			die "building the AWS CLI failed (log: $log)"
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
	new=$(mktemp "$dir/aws.XXXXXX")
	{
		printf '#!/bin/bash\n# Written by openpcs (scripts/awscli.sh).\nroot=%q\n' "$root"
		cat <<-'WRAPPER'
			# shellcheck disable=SC2016 # expanded by the inner shell
			exec unshare --mount --propagation private bash -c '
				root=$1 here=$PWD
				shift
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
				for f in /etc/resolv.conf /etc/hosts; do
					[[ -e $f ]] || continue
					[[ -e $root$f ]] || : >"$root$f"
					mount --bind "$f" "$root$f"
				done
				unset PYTHONHOME PYTHONPATH LD_LIBRARY_PATH LD_PRELOAD
				export PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
				exec chroot "$root" /bin/sh -c "cd \"\$1\" 2>/dev/null || cd /; shift; exec /usr/bin/aws \"\$@\"" sh "$here" "$@"
			' aws "$root" "$@"
		WRAPPER
	} >"$new"
	chmod 755 "$new"
	mv "$new" "$wrapper"
}

case ${1:-} in
path)
	if [[ ! -x $root/usr/bin/aws ]]; then
		build
	fi
	write_wrapper
	printf '%s\n' "$wrapper"
	;;
remove)
	rm -rf --one-file-system "$dir"
	;;
*) die "usage: awscli.sh path|remove" ;;
esac
