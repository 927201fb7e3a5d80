#!/bin/bash
# Mounts a file system of an NFS server, now and at each boot: openpcs's edition
# of the script mount-efs of AWS PCS.
set -euo pipefail

NAME=mount-efs

# include common.sh

usage() {
  cat <<'HELP'
mount-efs --file-system-id WHAT --mount-point DIR [--options LIST]

  --file-system-id  what to mount:
                      SERVER:/EXPORT or SERVER   an NFS server
                      /FOLDER                    a folder of this machine, for example
                                                 below /home, which all nodes of a
                                                 cluster share
                      fs-...                     an id of EFS; a line 'fs-... WHAT' in
                                                 /etc/openpcs/file-systems says what
                                                 it stands for here
  --mount-point     where, an absolute path
  --options         further options of NFS, separated by commas

It can run again: what is there stays. NFS needs a virtual or physical machine;
in system containers the kernel refuses it.
HELP
}

ID='' DIR='' OPTIONS=''
while [[ $# -gt 0 ]]; do
  case $1 in
    --file-system-id) ID=$(value "$@"); shift 2 ;;
    --mount-point) DIR=$(value "$@"); shift 2 ;;
    --options) OPTIONS=$(value "$@"); shift 2 ;;
    --help) usage && exit 0 ;;
    *) wrong "there is no option '$1'" ;;
  esac
done
[[ -n $ID ]] || wrong "--file-system-id is missing"
[[ $DIR == /?* ]] || wrong "--mount-point must be an absolute path, not '$DIR'"
plain --file-system-id "$ID"
plain --mount-point "$DIR"
plain --options "$OPTIONS"
as_root
nfs "$ID" "$OPTIONS" "${DIR%/}"
