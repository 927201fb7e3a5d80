#!/bin/bash
# Mounts a Lustre file system, now and at each boot: openpcs's edition of the
# script mount-fsx-lustre of AWS PCS.
set -euo pipefail

NAME=mount-fsx-lustre

# include common.sh

usage() {
  cat <<'HELP'
mount-fsx-lustre --fsx-dns-name SERVER --mount-name NAME --mount-point DIR [--options LIST]

  --fsx-dns-name  the Lustre server: a name, an address, or a list of NIDs such
                  as 10.0.0.5@tcp:10.0.0.6@tcp
  --mount-name    name of the file system on it
  --mount-point   where, an absolute path
  --options       options of Lustre, separated by commas (noatime,flock)

It can run again: what is there stays. The kernel must have the Lustre client,
which is part of no distribution's own kernel: the script does not install it.
HELP
}

SERVER='' FILES='' DIR='' OPTIONS=noatime,flock
while [[ $# -gt 0 ]]; do
  case $1 in
    --fsx-dns-name) SERVER=$(value "$@"); shift 2 ;;
    --mount-name) FILES=$(value "$@"); shift 2 ;;
    --mount-point) DIR=$(value "$@"); shift 2 ;;
    --options) OPTIONS=$(value "$@"); shift 2 ;;
    --help) usage && exit 0 ;;
    *) wrong "there is no option '$1'" ;;
  esac
done
[[ -n $SERVER ]] || wrong "--fsx-dns-name is missing"
[[ -n $FILES ]] || wrong "--mount-name is missing"
[[ $DIR == /?* ]] || wrong "--mount-point must be an absolute path, not '$DIR'"
plain --fsx-dns-name "$SERVER"
plain --mount-name "$FILES"
plain --mount-point "$DIR"
plain --options "$OPTIONS"
as_root
[[ $SERVER == *@* ]] || SERVER=$SERVER@tcp
if ! PATH=$PATH:/usr/sbin:/sbin command -v mount.lustre >/dev/null; then
  fail "this image has no Lustre client (mount.lustre): build an image with the client that fits the kernel"
fi
grep -qw lustre /proc/filesystems || modprobe lustre || fail "the kernel $(uname -r) has no Lustre client: the one of the image fits another kernel, or this is a container whose host lacks it"
mount_at "$SERVER:/${FILES#/}" lustre "$OPTIONS,_netdev,nofail" "${DIR%/}"
